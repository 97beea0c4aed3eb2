"""More than one GPU: work runs where the tensors are, whatever the current device is."""

import threading

import pytest
import tilewise as tw
import torch
from support import fresh, reference
from support.planning import GPUS
from support.tolerance import assert_identical, assert_rounded

pytestmark = pytest.mark.gpu


@pytest.fixture
def second():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    return torch.device("cuda", 1)


def test_the_second_gpu_while_the_first_is_current(second):
    x = torch.randn(100, 300, device=second)
    assert torch.cuda.current_device() == 0
    for got, (expected, error) in [
        (tw.add(x, x), reference.add(x, x, x.dtype)),
        (tw.softmax(x), reference.softmax(x)),
        (tw.matmul(x, x.mT), reference.matmul(x, x.mT)),
    ]:
        assert got.device == second
        assert_rounded(got, expected, error)
    assert torch.cuda.current_device() == 0


def test_the_stream_of_the_tensors_own_device(second):
    x = torch.randn(100, 300, device=second)
    tw.add(x, 1)
    side = torch.cuda.Stream(second)
    torch.cuda.synchronize(second)
    late = torch.full_like(x, float("nan"))
    torch.cuda.synchronize(second)
    with torch.cuda.stream(side), torch.cuda.device(0):
        torch.cuda.set_device(1)
        torch.cuda._sleep(500_000_000)
        torch.cuda.set_device(0)
        late.copy_(x)
        got = tw.add(late, 1)
        assert not side.query()
    side.synchronize()
    assert_identical(got, x + 1)


def test_tensors_of_two_gpus_do_not_mix(second):
    x, y = torch.ones(3, device="cuda:0"), torch.ones(3, device=second)
    with pytest.raises(tw.DeviceError, match="`y` is on cuda:1, but x is on cuda:0"):
        tw.add(x, y)
    with pytest.raises(tw.DeviceError, match="`out` is on cuda:1, but x is on cuda:0"):
        tw.add(x, 1, out=y)


def test_a_refused_lazily_cloned_tensor_keeps_its_gpu(second):
    here, there = torch.randn(100, device="cuda:0"), torch.randn(100, device=second)
    tw.add(here, here, out=torch.empty_like(here))
    for refused in (
        lambda clone: tw.add(here, clone),
        lambda clone: tw.add(torch.tensor(2.0), clone),
        lambda clone: tw.softmax(here, out=clone),
    ):
        clone = torch._lazy_clone(there)
        for _ in range(2):
            with pytest.raises(tw.DeviceError):
                refused(clone)
        assert_identical(clone, there)
        assert_identical(tw.add(clone, 1), there + 1)


def test_both_gpus_from_two_threads(second):
    def work(device, results):
        for _ in range(50):
            x = torch.randn(64, 777, device=device)
            results.append(torch.equal(tw.add(x, x), 2 * x))
            total = tw.softmax(x).sum(-1)
            results.append(torch.allclose(total, torch.ones_like(total), atol=1e-5))

    results = []
    threads = [threading.Thread(target=work, args=(d, results)) for d in ("cuda:0", "cuda:1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    assert all(results)


def test_a_first_call_on_the_second_gpu(second):
    fresh.run("""
        import torch, tilewise as tw
        x = torch.randn(50, 50, device="cuda:1")
        assert torch.equal(tw.add(x, x), 2 * x)
        assert torch.cuda.memory_allocated(0) == 0
    """)


OPS = {
    "add": lambda x: tw.add(x, x[:1]),
    "softmax": tw.softmax,
    "softmax of the whole device": lambda x: tw.softmax(x.reshape(1, -1)),
    "matmul": lambda x: tw.matmul(x, x.mT),
    "matmul half": lambda x: tw.matmul(x.half(), x.half().mT, bias=x[:, 0].half(), activation="gelu"),
    "matmul split-K": lambda x: tw.matmul(x.half().view(8, -1), x.half().view(8, -1).mT),
}


@pytest.mark.parametrize("op", list(OPS))
def test_a_graph_of_the_second_gpu(second, op):
    """Captured, replayed and freed while the first is current."""
    call = OPS[op]
    x = torch.randn(512, 1536, device=second)
    torch.cuda.synchronize(second)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(second)):
        torch.cuda.set_device(0)
        got = call(x)
        torch.cuda.set_device(1)
    assert torch.cuda.current_device() == 0
    for _ in range(3):
        x.normal_()
        with torch.cuda.device(second):
            graph.replay()
        assert_identical(got, call(x))


def test_graphed_callables_of_the_second_gpu(second, monkeypatch):
    # torch keeps the stream that it first captured on, whatever GPU that was of.
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", None)

    def layer(x, w, bias):
        return tw.log_softmax(tw.matmul(x, w, bias=bias, activation="silu"))

    def sample():
        shapes = ((64, 96), (96, 80), (80,))
        return tuple(torch.randn(shape, device=second, requires_grad=True) for shape in shapes)

    with torch.cuda.device(second):
        graphed = torch.cuda.make_graphed_callables(layer, sample())
    inputs = sample()
    for function in (graphed, layer):
        result = function(*inputs)
        grads = torch.autograd.grad(result.square().sum(), inputs)
        if function is graphed:
            replayed = [t.clone() for t in (result, *grads)]
    for got, expected in zip(replayed, (result, *grads), strict=True):
        assert_identical(got, expected)


def test_the_cpu_and_the_gpu_do_not_mix():
    x, y = torch.ones(3, device="cuda"), torch.ones(3)
    with pytest.raises(tw.DeviceError, match="`y` is on cpu, but x is on cuda:0"):
        tw.add(x, y)
    with pytest.raises(tw.DeviceError, match="`y` is on cuda:0, but x is on cpu"):
        tw.add(y, x)
    with pytest.raises(tw.DeviceError, match="`out` is on cpu, but x is on cuda:0"):
        tw.softmax(x, out=y)
    with pytest.raises(tw.DeviceError, match="`bias` is on cpu, but a is on cuda:0"):
        tw.matmul(x[None], x[:, None], bias=torch.ones(1))


def test_a_number_tensor_on_the_gpu_may_not_join_the_cpu():
    with pytest.raises(tw.DeviceError, match="`y` is on cuda:0, but x is on cpu"):
        tw.add(torch.ones(3), torch.tensor(1.0, device="cuda"))
    # Nor may it be the first operand from the CPU.
    with pytest.raises(tw.DeviceError):
        tw.add(torch.tensor(1.0), torch.ones(3, device="cuda"))


def test_a_gpu_that_is_here_is_explained_as_its_product():
    x = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    calls = {"matmul": (x, x), "softmax": (x,), "add": (x, 1)}
    products = {tw.explain("add", x, 1, device=name).device.name: name for name in GPUS}
    for found in tw.devices():
        if found["name"] not in products:
            pytest.skip(f"{found['name']} is no product that explain knows")
        for op, args in calls.items():
            here, product = (
                tw.explain(op, *args, device=device) for device in (found["index"], products[found["name"]])
            )
            assert here.device == product.device
            assert here.ceiling == product.ceiling
            assert here.launches == product.launches


def test_devices_lists_every_gpu():
    listed = tw.devices()
    assert [d["index"] for d in listed] == list(range(torch.cuda.device_count()))
    for found in listed:
        properties = torch.cuda.get_device_properties(found["index"])
        assert found["name"] == properties.name
        assert tuple(found["compute_capability"]) == (properties.major, properties.minor)
        assert found["memory_bytes"] == properties.total_memory
        assert found["multiprocessors"] == properties.multi_processor_count
        assert found["l2_bytes"] == properties.L2_cache_size
        assert found["threads"] == properties.max_threads_per_multi_processor
        assert found["shared_bytes"] >= found["shared_bytes_per_block"] > 48 * 1024
        # From 100 GB/s on a laptop's GPU to 10 TB/s.
        assert found["memory_bytes_per_second"] is None or 1e11 < found["memory_bytes_per_second"] < 1e13
