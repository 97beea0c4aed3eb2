"""No call takes memory without bound; where there is none left, it raises instead of ending the process."""

import json

import pytest
from support import fresh

pytest.importorskip("torch")


# So many terms take days: that a child still computes, and what it holds, is all there is to see.
EXPANDED = """
    import json, os, signal, time
    import torch
    import tilewise as tw

    def peak_bytes(process):
        with open(f"/proc/{process}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

    taken = {}
    for dtype in (torch.float16, torch.float32):
        x = torch.ones(1, dtype=dtype).expand(2**46)
        across = x[:, None].expand(-1, 3)
        for a, b in ((x, x), (x.expand(3, -1), x), (x, across), (x.expand(2, -1), across)):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                tw.matmul(torch.ones(700, 700), torch.ones(700, 700))
                os.write(write, b"ready")
                tw.matmul(a, b)
                os._exit(0)
            try:
                assert os.read(read, 5) == b"ready"
                before = peak_bytes(child)
                time.sleep(0.5)
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended"
                taken[f"{dtype} {tuple(a.shape)} {tuple(b.shape)}"] = peak_bytes(child) - before
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    print(json.dumps(taken))
"""


def test_products_of_expanded_operands_take_little_memory():
    taken = json.loads(fresh.run_after_torch(EXPANDED))
    assert len(taken) == 8
    assert max(taken.values()) < 2**26, taken


# Each call runs in a forked child that may take so many MiB more of address space than it has.
ROOMS = [0, 1, 4, 16, 64, 1024]
LIMITED = """
    import json, os, resource, signal, sys
    import torch
    import tilewise as tw

    torch.set_num_threads(1)

    def calls(dtype):
        torch.manual_seed(0)
        x, long = torch.randn(1200, 1200).to(dtype), torch.randn(3, 400_000).to(dtype)
        deep, one = torch.randn(12, 100_000).to(dtype), torch.ones(1, dtype=dtype)
        tall = long.view(100_000, 12)
        silu = dict(activation="silu", saved_is="pre_activation", bias=True)
        yield "matmul", lambda: tw.matmul(x, x)
        yield "matmul with bias", lambda: tw.matmul(x, x, bias=x[0], activation="gelu")
        yield "matmul of transposed matrices", lambda: tw.matmul(x.T, x.T)
        yield "matmul with an expanded bias", lambda: tw.matmul(x[:40], x, bias=one.expand(1200))
        yield "matmul of expanded matrices", lambda: tw.matmul(one.expand(2, 2**20), one.expand(2**20, 3))
        yield "matmul of batches", lambda: tw.matmul(x.view(12, 100, 1200), x)
        yield "matmul of few rows and columns", lambda: tw.matmul(deep, deep.T)
        yield "matrix times vector", lambda: tw.matmul(deep, deep[0])
        yield "vector times matrix", lambda: tw.matmul(deep[:, 0], deep)
        yield "column times row", lambda: tw.matmul(one.expand(3, 1), long[:1])
        yield "product of expanded vectors", lambda: tw.matmul(one.expand(2**24), one.expand(2**24))
        yield "add", lambda: tw.add(x, x.T)
        yield "softmax", lambda: tw.softmax(x)
        yield "softmax of long rows", lambda: tw.softmax(long)
        yield "softmax of long columns", lambda: tw.softmax(tall, 0)
        yield "log_softmax of columns", lambda: tw.log_softmax(x, 0)
        yield "softmax_backward of long rows", lambda: tw.softmax_backward(long, long)
        yield "log_softmax_backward of long columns", lambda: tw.log_softmax_backward(tall, tall, 0)
        yield "activation_backward", lambda: tw._core.activation_backward(x, x, **silu)

    def results(call):
        got = call()
        return got if isinstance(got, tuple) else (got,)

    def end(call, expected, room):
        '''How a child of so much room ends: 0: right, 1: wrong, else: with an error.'''
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = 3
        try:
            signal.alarm(120)
            pages = int(open("/proc/self/statm").read().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, [pages * resource.getpagesize() + room * 2**20] * 2)
            status = int(not all(torch.equal(g, e) for g, e in zip(results(call), expected)))
        except tw.OutOfMemoryError:
            status = 4
        except MemoryError:
            # Python's, of its objects.
            status = 2
        except RuntimeError as error:
            # torch's, of its result.
            status = 2 if "allocate memory" in str(error) else 3
        finally:
            os._exit(status)

    ended = {}
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        for name, call in calls(dtype):
            expected = results(call)
            ended[f"{name} {dtype}"] = [end(call, expected, room) for room in ROOMS]
    print(json.dumps(ended))
"""


def test_calls_without_room_raise_or_are_right():
    ended = json.loads(fresh.run_after_torch(LIMITED.replace("ROOMS", str(ROOMS))))
    wrong = {name: ends for name, ends in ended.items() if not {0, 2, 4}.issuperset(ends)}
    assert not wrong, f"0: right, 2: raised by Python or torch, 4: by tilewise, by MiB of room: {ROOMS}"
    assert all(ends[-1] == 0 for ends in ended.values())
    assert any(ends[0] in (2, 4) for ends in ended.values())
    assert any(4 in ends for ends in ended.values())
