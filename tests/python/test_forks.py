"""Children of fork compute, whatever their process ids, although no thread of their parent is there."""

import pytest
from support import fresh

pytest.importorskip("numpy")

# A container's first process has the id 1, and so has its child in a namespace of its own.
NAMESPACES = """
    import ctypes, os, signal, sys, time

    NEW_PIDS, NEW_USERS = 0x20000000, 0x10000000
    libc = ctypes.CDLL(None, use_errno=True)

    def first_of_a_namespace(work):
        if libc.unshare(NEW_PIDS) and libc.unshare(NEW_USERS | NEW_PIDS):
            print("unshare:", os.strerror(ctypes.get_errno()))
            return
        child = os.fork()
        if child == 0:
            try:
                work()
                os._exit(0)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
        for _ in range(1200):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                assert status == 0, f"status {status}"
                return
            time.sleep(0.05)
        # The death of a namespace's first process is that of all in it.
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise TimeoutError(f"the child of process {os.getpid()} hangs")

    def compute():
        import numpy as np
        import tilewise as tw

        x = np.ones((300, 300), "f4")
        assert (tw.matmul(x, x) == 300).all()
        assert (tw.add(np.ones(3_000_000), 1) == 2).all()
        assert (tw.softmax(np.zeros((1000, 1024))) == 1 / 1024).all()
        print("computed in process", os.getpid(), flush=True)

    def parent():
        compute()
        first_of_a_namespace(compute)
        compute()

    # Before anything starts a thread: only a process of one may have a namespace of users.
    first_of_a_namespace(parent)
"""


def test_a_forked_child_computes():
    # A data loader's worker.
    fresh.run("""
        import os, signal
        import numpy as np
        import tilewise as tw

        def work():
            x = np.ones((300, 300), "f4")
            assert (tw.matmul(x, x) == 300).all()
            assert (tw.add(np.ones(3_000_000), 1) == 2).all()
            assert (tw.softmax(np.zeros((1000, 1024))) == 1 / 1024).all()

        work()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                work()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child hung or failed"
        work()
    """)


def test_a_forked_child_with_its_parents_process_id_computes():
    printed = fresh.run(NAMESPACES)
    if "unshare" in printed:
        pytest.skip(printed.strip())
    assert printed.split("\n") == ["computed in process 1"] * 3 + [""]
