"""Libraries that order their work by streams of their own, and take results over by DLPack."""

import gc

import pytest
import tilewise as tw
import torch
from support.exchange_table import OnGpu, driver_stream, published
from support.producer import IS_COPIED, READ_ONLY
from support.tolerance import assert_identical

pytestmark = pytest.mark.gpu


@pytest.fixture
def library():
    """The type of a library's tensors, and what destroys the stream that it works on."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    with driver_stream() as (stream, destroy):
        yield published(OnGpu, describes=True, exports=True, stream=stream), stream, destroy


def test_results_wait_for_the_librarys_stream(library):
    kind, stream, _ = library
    x = torch.randn(1 << 20, device="cuda")
    late = torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
        torch.cuda._sleep(200_000_000)
        late.copy_(x)
    got = tw.add(kind(late), 1)
    assert type(got) is torch.Tensor
    assert_identical(got, x + 1)


def test_results_outlive_the_librarys_stream(library):
    kind, _, destroy = library
    x = torch.randn(1 << 20, device="cuda")
    torch.cuda.synchronize()
    results = [tw.add(kind(x), n) for n in range(4)]
    results.append(tw.softmax(kind(x.view(1024, 1024)), 0))
    torch.cuda.synchronize()
    destroy()
    # Streams that are made now may get the address of the one that is gone.
    others = [torch.cuda.Stream() for _ in range(8)]
    for n, result in enumerate(results[:4]):
        assert_identical(result, x + n)
    del result, results
    gc.collect()
    torch.cuda.synchronize()
    for stream in others:
        with torch.cuda.stream(stream):
            assert_identical(tw.add(x, 1), x + 1)
    torch.cuda.synchronize()


def test_results_may_go_while_torch_captures(library):
    kind, _, _ = library
    x, out = torch.randn(1 << 16, device="cuda"), torch.empty(1 << 16, device="cuda")
    tw.add(x, 1, out=out)
    torch.cuda.synchronize()
    results = [tw.add(kind(x), n) for n in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results.clear()
        gc.collect()
        tw.add(x, 2, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert_identical(out, x + 2)


@pytest.mark.parametrize(("flags", "match"), [(READ_ONLY, "read-only"), (IS_COPIED, "hands out a copy")])
def test_what_may_not_be_written_is_not(library, flags, match):
    kind, _, _ = library
    x, target = torch.randn(64, device="cuda"), torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    with pytest.raises(tw.LayoutError, match=match):
        tw.add(kind(x), 1, out=kind(target, flags))
    plain = kind(target)
    assert tw.add(kind(x), 1, out=plain) is plain
    torch.cuda.synchronize()
    assert_identical(target, x + 1)
