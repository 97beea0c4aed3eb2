"""Calls on torch tensors work on torch's threads, as torch.set_num_threads has them; others on tilewise's."""

import pytest
import tilewise as tw
import torch
from support import fresh
from tilewise import _core

LENT = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 10)
lent = pytest.mark.skipif(not LENT, reason="this torch does not lend its threads")

BEGIN = """
    import ctypes, os, pathlib, signal, sys, threading
    import numpy as np
    import torch
    import tilewise as tw
    from tilewise import _core

    def threads():
        return len(os.listdir("/proc/self/task"))

    def own():
        '''Threads of tilewise's own, besides the caller.'''
        names = [task.read_text() for task in pathlib.Path("/proc/self/task").glob("*/comm")]
        return sum(name.startswith("tilewise-") for name in names)

    # By NumPy, since torch's own operations would start threads, and wait for them in a forked child.
    big, square = (torch.from_numpy(np.ones((n, n), np.float32)) for n in (1500, 600))
    halves = torch.from_numpy(np.full((600, 600), 0x3F80, np.int16)).view(torch.bfloat16)

    def is_all(result, value):
        bits = result.view(torch.int16 if result.itemsize == 2 else torch.int32).numpy()
        return (bits == bits.flat[0]).all() and result.flatten()[0].item() == value

    def work():
        assert is_all(tw.add(big, big), 2)
        assert abs(tw.softmax(big).numpy().sum(1) - 1).max() < 1e-4
        for x in (square, halves):
            assert is_all(tw.matmul(x, x, bias=x[0], activation="relu"), 601 if x is square else 600)
            assert is_all(tw.matmul(x.expand(20, -1, -1), x), 600)
            assert is_all(tw.matmul(x, x[0]), 600)

    def in_a_child(work):
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            try:
                work()
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child hung or failed"
"""


@lent
def test_there_are_as_many_threads_as_torch_has():
    fresh.run(
        f"""{BEGIN}
    before = threads()
    for count in (1, 2, 3, 1, 4):
        torch.set_num_threads(count)
        work()
        # With fewer than before, torch may keep the others.
        assert threads() - before == count - 1 or count == 1 and threads() <= before + 2
        assert tw.explain(tw.add, big, big).cpu.threads == count
    assert own() == 0
    """,
        RAYON_NUM_THREADS="5",
    )


@lent
def test_every_way_to_a_call_has_torch_s_threads():
    fresh.run(f"""{BEGIN}
    from torch.utils._python_dispatch import TorchDispatchMode
    torch.set_num_threads(2)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {{}}))

    def calls(x):
        return [tw.add(x, x), tw.softmax(x), tw.log_softmax(x, 0), tw.matmul(x, x, activation="gelu")]

    for _ in range(3):
        calls(big)
        recorded = big.clone().requires_grad_()
        sum(y.sum() for y in calls(recorded)).backward()
        with Mode():
            calls(big)
        torch.ops.tilewise.softmax(big)
        tw.softmax_backward(big, big)
        with torch.autocast("cpu", torch.bfloat16):
            calls(big)
        torch.func.vmap(tw.softmax)(big)
    tw.add(big, 1, out=big)
    assert own() == 0
    """)


def test_arrays_of_other_libraries_have_threads_of_tilewise_s_own():
    printed = fresh.run_after_torch(
        f"""{BEGIN}
    torch.set_num_threads(1)
    x = np.ones((1500, 1500))
    assert (tw.add(x, x) == 2).all() and (tw.matmul(x, x) == 1500).all()
    print(own(), tw.explain(tw.add, x, x).cpu.threads)
    """,
        RAYON_NUM_THREADS="3",
    )
    assert printed.split() == ["2", "3"]


def test_tensors_of_a_torch_that_does_not_lend_its_threads_do_too():
    printed = fresh.run(
        f"""{BEGIN}
    _core.withhold_torch_threads(True)
    torch.set_num_threads(1)
    work()
    print(own(), tw.explain(tw.add, big, big).cpu.threads)
    """,
        RAYON_NUM_THREADS="3",
    )
    assert printed.split() == ["2", "3"]


@lent
def test_calls_within_a_parallel_region_of_torch_s_are_made():
    fresh.run(f"""{BEGIN}
    torch.set_num_threads(2)
    work()
    before, done, failed = threads(), [], []

    @ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    def region(first, end, _):
        try:
            for i in range(first, end):
                work()
                done.append((i, threading.get_native_id()))
        except BaseException as error:
            failed.append(error)

    library = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    parallel_for = library.torch_parallel_for
    parallel_for.argtypes = [ctypes.c_int64] * 3 + [type(region), ctypes.c_void_p]
    signal.alarm(200)
    assert parallel_for(0, 4, 1, region, None) == 0
    assert not failed, failed
    assert sorted(i for i, _ in done) == [0, 1, 2, 3] and len({{thread for _, thread in done}}) == 2
    assert (threads(), own()) == (before, 0)
    """)


def test_a_forked_child_computes_on_as_many():
    fresh.run(
        f"""{BEGIN}
    torch.set_num_threads(2)
    torch.add(big, big)
    work()

    for count in (1, 2):

        def child():
            torch.set_num_threads(count)
            work()
            assert own() == (0 if count == 1 else 3)
            assert tw.explain(tw.add, big, big).cpu.threads == count
            in_a_child(work)

        in_a_child(child)
        work()
    """,
        RAYON_NUM_THREADS="4",
    )


def test_a_forked_child_that_is_the_first_to_import_tilewise_computes():
    fresh.run("""
        import os, signal
        import torch

        torch.set_num_threads(2)
        big = torch.ones(1500, 1500)
        torch.add(big, big)
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            import tilewise as tw

            os._exit(0 if tw.add(big, big).numpy().max() == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0, "the child hung or failed"
    """)


def test_workers_of_a_data_loader_compute():
    fresh.run(f"""{BEGIN}
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            assert tw.explain(tw.add, big, big).cpu.threads == torch.get_num_threads()
            return tw.softmax(big + i)

    torch.set_num_threads(2)
    work()
    signal.alarm(200)
    for batch in DataLoader(Rows(), num_workers=2, multiprocessing_context="fork"):
        assert torch.equal(batch[0], tw.softmax(big))
    """)


def test_python_threads_at_once():
    fresh.run(f"""{BEGIN}
    torch.set_num_threads(2)
    failed = []

    def loop():
        try:
            for _ in range(5):
                work()
        except BaseException as error:
            failed.append(error)

    pair = [threading.Thread(target=loop) for _ in range(2)]
    signal.alarm(200)
    for thread in pair:
        thread.start()
    for thread in pair:
        thread.join()
    assert not failed, failed
    """)


@lent
def test_torch_s_threads_keep_their_own_floating_point_modes():
    fresh.run(f"""{BEGIN}
    torch.set_num_threads(2)
    small = torch.full((1500, 1500), 1, dtype=torch.int32).view(torch.float32)
    kept = (small + small).count_nonzero()
    if not torch.set_flush_denormal(True):
        sys.exit()
    flushed = tw.add(small, small)
    torch.set_flush_denormal(False)
    assert flushed.view(torch.int32).count_nonzero() == 0
    assert (small + small).count_nonzero() == kept == small.numel()
    """)


SHAPES = [(512, 512, 700), (100, 100, 700), (64, 64, 9000), (50, 50, 9000), (1000, 3, 5000), (3, 1000, 5000)]
SHAPES += [
    (2, 20_000, 100),
    (65, 64, 3000),
    (130, 257, 700),
    (1300, 1030, 600),
    (16, 17, 30_000),
    (2000, 70, 70),
]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield range(1, 5)
    _core.withhold_torch_threads(False)
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_bits_are_the_same_whoever_works(threads, dtype):
    def assert_same(name, call):
        found = []
        for withheld in (False, True):
            _core.withhold_torch_threads(withheld)
            for count in threads:
                torch.set_num_threads(count)
                found.append(call())
        assert all(torch.equal(result, found[0]) for result in found), name

    for m, n, k in SHAPES:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        b_transposed, bias = torch.randn(n, k).to(dtype).T, torch.randn(n).to(dtype)
        assert_same((m, n, k), lambda a=a, b=b: tw.matmul(a, b))
        assert_same((m, n, k, "transposed"), lambda a=a, b=b_transposed: tw.matmul(a, b))
        gelu = {"bias": bias, "activation": "gelu"}
        assert_same((m, n, k, "gelu"), lambda a=a, b=b, gelu=gelu: tw.matmul(a, b, **gelu))
    x, long = torch.randn(700, 1001).to(dtype), torch.randn(3, 400_003).to(dtype)
    assert_same("add", lambda: tw.add(x, x.flip(0), alpha=0.3))
    for tensor in (x, long):
        for dim in (0, 1):
            assert_same(("softmax", dim), lambda x=tensor, dim=dim: tw.softmax(x, dim))
            assert_same(("backward", dim), lambda x=tensor, dim=dim: tw.softmax_backward(x, x, dim))
    # As many long rows are solved together as there are threads for.
    several = torch.randn(5, 70_001).to(dtype)
    for op in (tw.softmax, tw.log_softmax):
        assert_same(op, lambda op=op: op(several))
        assert_same((op, "into its input"), lambda op=op, x=several: op(y := x.clone(), out=y))
        assert_same(
            (op, "into every second"),
            lambda op=op: op(several, out=torch.empty(5, 140_002, dtype=dtype)[:, ::2]),
        )
    for op in (tw.softmax_backward, tw.log_softmax_backward):
        assert_same(op, lambda op=op: op(several, several, 1))
    assert_same("matrix times vector", lambda: tw.matmul(long, long[0]))
    assert_same("batched", lambda: tw.matmul(x.view(7, 100, 1001), x.T))
