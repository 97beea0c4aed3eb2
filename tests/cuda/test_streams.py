"""Work is queued on the caller's current stream, at once, and nothing else is touched."""

import ctypes
import threading

import pytest
import tilewise as tw
import torch
from support import fresh
from support.tolerance import assert_identical
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.gpu

# About half a second of spinning on the device: far longer than queueing anything takes.
SPIN = 1_000_000_000


def data(dtype=torch.float32):
    return torch.randn(256, 1024, device="cuda").to(dtype)


OPS = {
    "add": lambda x: tw.add(x, x),
    "add number": lambda x: tw.add(x, 1.5),
    "softmax": lambda x: tw.softmax(x),
    "softmax dim 0": lambda x: tw.softmax(x, 0),
    "softmax of the whole device": lambda x: tw.softmax(x.view(1, -1)),
    "log_softmax": lambda x: tw.log_softmax(x),
    "matmul": lambda x: tw.matmul(x, x.mT),
    "matmul half": lambda x: tw.matmul(x.half(), x.half().mT, bias=x[:, 0].half(), activation="gelu"),
    "batched matmul": lambda x: tw.matmul(x.view(16, 16, 1024), x.view(16, 1024, 16)),
}
ops = pytest.mark.parametrize("op", list(OPS))


@ops
def test_a_call_on_a_busy_stream_returns_at_once_and_keeps_its_turn(op):
    call, x = OPS[op], data()
    expected = call(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    late = torch.full_like(x, float("nan"))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SPIN)
        late.copy_(x)
        got = call(late)
        after = got.clone()
        busy = not stream.query()
    assert busy, "the call waited for the stream"
    stream.synchronize()
    assert_identical(got, expected)
    assert_identical(after, expected)


@ops
def test_only_the_current_stream_gets_work(op):
    call, x = OPS[op], data()
    expected = call(x)
    blocked, free = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(blocked):
        torch.cuda._sleep(SPIN)
    with torch.cuda.stream(free):
        got = call(x)
    # The free stream finishes while the other still spins: nothing was queued behind the spinning.
    free.synchronize()
    still_spinning = not blocked.query()
    assert_identical(got, expected)
    assert still_spinning, "the call waited for a stream that it has nothing to do with"
    blocked.synchronize()


def test_launches_of_the_whole_device_on_several_streams():
    """Blocks of each wait for each other: none may wait for a place that another launch holds."""
    streams = [torch.cuda.Stream() for _ in range(4)]
    # All places of the device, half of them, and what leaves some to others.
    xs = [
        torch.randn(shape, device="cuda")
        for shape in ((1, 9_000_000), (2, 300_000), (1, 300_000), (64, 50_257))
    ]
    expected = [tw.softmax(x) for x in xs]
    torch.cuda.synchronize()
    got = []
    for _ in range(50):
        got.clear()
        for stream, x in zip(streams, xs, strict=True):
            with torch.cuda.stream(stream):
                got.append(tw.softmax(x))
    torch.cuda.synchronize()
    for result, softmax in zip(got, expected, strict=True):
        assert_identical(result, softmax)


FULL_QUEUE = """
    import ctypes, time
    import torch, tilewise as tw
    from tilewise import _core

    x, half = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda").half()
    long, out = torch.randn(1, 300_000, device="cuda"), torch.empty(64, 64, device="cuda")
    kept = []
    shapes = [x[: 1 + n % 64, : 1 + n // 64] for n in range(640)]
    calls = [
        lambda n: tw.add(x, x, out=out),
        lambda n: tw.add(shapes[n % 640], 1.0),
        lambda n: tw.softmax(x),
        lambda n: tw.softmax(long),
        lambda n: tw.matmul(half, half, bias=half[0], activation="gelu"),
        lambda n: tw.matmul(x, x[:, : 1 + n % 64]),
        lambda n: tw.softmax_backward(x, x),
        lambda n: _core.activation_backward(x, x, "relu", bias=True),
        # More memory than torch has kept: its allocator asks the driver while the host function waits.
        lambda n: kept.append(tw.add(x[0, :1].expand(1 << 20), 1.0)) if n < 300 else None,
    ]
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    host_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.2))
    address, stream = ctypes.cast(host_function, ctypes.c_void_p), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for number, call in enumerate(calls):
            for n in range(3):
                call(n)
            torch.cuda.synchronize()
            assert cuda.cuLaunchHostFunc(stream.cuda_stream, address, None) == 0
            for n in range(3000):
                call(n)
            stream.synchronize()
            print(number, end=" ", flush=True)
"""


def test_a_launch_that_blocks_does_not_hold_the_gil():
    """A stream's queue is full before so many launches, and drains only after a host function in Python."""
    assert fresh.run(FULL_QUEUE, seconds=120).split() == [str(n) for n in range(9)]


def test_the_default_stream():
    x = data()
    late = torch.full_like(x, float("nan"))
    # The first call of a process loads the kernel, which may take longer than the queued work.
    tw.add(late, 1)
    torch.cuda.synchronize()
    torch.cuda._sleep(SPIN)
    late.copy_(x)
    got = tw.add(late, 1)
    assert not torch.cuda.default_stream().query()
    assert_identical(got, x + 1)


def test_an_external_stream():
    stream = torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)
    x = data()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SPIN // 10)
        got = tw.softmax(x)
        assert not stream.query()
    stream.synchronize()
    assert_identical(got, tw.softmax(x))


def test_streams_of_threads_are_their_own():
    x, values = data(), []
    out = tw.add(x, 1).fill_(float("nan"))  # and the kernel is loaded
    torch.cuda.synchronize()

    def work():
        # This thread's current stream is the default one, whatever the other thread has set.
        values.append(tw.add(x, 1, out=out).cpu())

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(4 * SPIN)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not side.query(), "the thread has waited for another thread's stream"
    side.synchronize()
    # Behind the other thread's work, the result would not have been there yet.
    assert_identical(values[0], x.cpu() + 1)


def test_a_fresh_thread_has_no_context_and_needs_none():
    x, out, errors = data(), torch.empty(256, 1024, device="cuda"), []
    torch.cuda.synchronize()

    def work():
        try:
            tw.softmax(x, out=out)
            torch.cuda.synchronize()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    assert_identical(out, tw.softmax(x))


def current_context():
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


@ops
def test_device_and_context_are_as_before(op):
    x = data()
    before = torch.cuda.current_device(), current_context()
    OPS[op](x)
    assert (torch.cuda.current_device(), current_context()) == before


def test_the_context_is_restored_after_an_error():
    before = current_context()
    with pytest.raises(tw.ShapeError):
        tw.add(data(), torch.ones(3, device="cuda"))
    assert current_context() == before


@ops
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_a_call_neither_synchronises_nor_allocates_on_the_device(op):
    x = data()
    for _ in range(3):
        OPS[op](x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        OPS[op](x)
    names = {event.name for event in trace.events()}
    assert any("LaunchKernel" in name for name in names), names
    for forbidden in (
        "Malloc",
        "MemAlloc",
        "Free",
        "EventSynchronize",
        "StreamSynchronize",
        "CtxSynchronize",
    ):
        found = [name for name in names if name.startswith(("cuda" + forbidden, "cu" + forbidden))]
        assert not found, f"{found} during the call"


def test_copying_to_the_host_waits_for_our_work():
    x = torch.zeros(1 << 22, device="cuda")
    for _ in range(10):
        tw.add(x, 1, out=x)
    assert x.cpu().unique().tolist() == [10.0]


def test_events_see_our_work():
    x, stream = data(), torch.cuda.Stream()
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SPIN // 10)
        got = tw.add(x, 1)
        done.record()
    torch.cuda.current_stream().wait_event(done)
    assert_identical(got + 1, x + 1 + 1)
