"""Two processes: DTensor's placements, tensor-parallel plans, and DDP, against one process with all of it."""

import copy
import itertools
import os

import pytest
import tilewise as tw
import tilewise.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F

BACKENDS = ["gloo", "nccl"] if torch.cuda.device_count() > 1 else ["gloo"]


def run(rank, backend, path):
    dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=2)
    try:
        torch.set_num_threads(1)
        device = "cpu" if backend == "gloo" else f"cuda:{rank}"
        mesh = dist.init_device_mesh(torch.device(device).type, (2,))
        for check in (placements, plans, data_parallel):
            torch.manual_seed(0)
            with torch.device(device):
                check(mesh, rank)
        # A default device is a mode, which would see the calls.
        by_weights(mesh)
    finally:
        dist.destroy_process_group()
    # Without the interpreter's finalization: gloo's threads can still let go of tensors then, and the
    # process aborts (pytorch/pytorch#179291).
    os._exit(0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
def test_as_in_one_process(backend, tmp_path):
    # Together: importing torch twice takes longer than all that is checked then.
    torch.multiprocessing.spawn(run, (backend, tmp_path / "store"), nprocs=2)


def agree(function, tensors, placements, mesh):
    """A call and its gradients, on tensors distributed so and on whole ones; where the result was placed."""
    from torch.distributed.tensor import distribute_tensor

    whole = [t.clone().requires_grad_() for t in tensors]
    parts = [
        distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in zip(tensors, placements, strict=True)
    ]
    got, expected = function(*parts), function(*whole)
    torch.testing.assert_close(got.full_tensor(), expected)
    # No square(): torch 2.5 differentiates it wrongly where a DTensor is a partial sum.
    (got * got).sum().backward()
    (expected * expected).sum().backward()
    for part, t in zip(parts, whole, strict=True):
        torch.testing.assert_close(part.grad.full_tensor(), t.grad)
    return got.placements[0]


def placements(mesh, rank):
    from torch.distributed.tensor import Partial, Replicate, Shard

    def double(*shape):
        return torch.randn(shape, dtype=torch.float64)

    whole, rows, columns = Replicate(), Shard(0), Shard(1)
    x, w, b = double(4, 6), double(6, 8), double(8)
    for op in (tw.softmax, tw.log_softmax):
        assert [agree(op, [x], [p], mesh) for p in (whole, rows, columns)] == [whole, rows, whole]
        assert agree(lambda x, op=op: op(x, 0), [x], [columns], mesh) == columns
    assert agree(lambda x: tw.add(x, 1.5), [x], [columns], mesh) == columns
    for p, q in itertools.product((whole, rows, columns), (whole, rows)):
        agree(lambda x, y: tw.add(x, y, alpha=2), [x, double(6)], [p, q], mesh)
    assert agree(tw.add, [x, x], [rows, rows], mesh) == rows
    for activation in (None, "relu", "gelu"):

        def layer(x, w, b, activation=activation):
            return tw.matmul(x, w, bias=b, activation=activation)

        assert agree(layer, [x, w, b], [whole, columns, rows], mesh) == columns
        assert agree(layer, [x, w, b], [rows, whole, whole], mesh) == rows
        # Parts of the inner dimension can be summed later, but an activation is not for parts.
        split = agree(layer, [x, w, b], [columns, rows, whole], mesh)
        assert split.is_partial() == (activation is None)

    def gated(x, w, gate, residual):
        return tw.matmul(x, w, gate=gate, residual=residual, activation="silu")

    assert agree(gated, [x, w, double(6, 8), b], [whole, columns, columns, rows], mesh) == columns
    assert agree(gated, [x, w, double(6, 8), b], [rows, whole, whole, whole], mesh) == rows
    assert agree(tw.matmul, [double(2, 4, 6), double(2, 6, 8)], [rows, rows], mesh) == rows
    assert agree(tw.matmul, [double(2, 4, 6), w], [rows, whole], mesh) == rows
    assert agree(tw.matmul, [double(2, 1, 4, 6), double(4, 6, 8)], [rows, whole], mesh) == rows
    assert agree(tw.matmul, [double(6), w], [rows, rows], mesh) == Partial()
    assert agree(tw.matmul, [x, double(6)], [rows, whole], mesh) == rows


def plans(mesh, rank):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    single = torch.nn.Sequential(
        tilewise.torch.Linear(6, 8, activation="gelu"), tilewise.torch.Linear(8, 6), tilewise.torch.Softmax()
    ).double()
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(copy.deepcopy(single), mesh, plan)
    assert model[0].weight.to_local().shape == (4, 6)
    x = torch.randn(4, 6, dtype=torch.float64)
    got, expected = model(x), single(x)
    torch.testing.assert_close(got, expected)
    (got * got).sum().backward()
    (expected * expected).sum().backward()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


def by_weights(mesh):
    """Products that DTensor itself is not asked for, and those beside them that it is."""
    from tilewise.torch import sharded
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    def double(*shape):
        return torch.randn(shape, dtype=torch.float64, device=mesh.device_type)

    def on(t, placement):
        return distribute_tensor(t, mesh, [placement])

    whole, rows, columns = Replicate(), Shard(0), Shard(1)
    own = []
    product = sharded.local_product
    sharded.local_product = lambda *args, **options: own.append(1) or product(*args, **options)
    x, w, b = double(5, 6), double(6, 9), double(9)
    # Sizes that two processes do not share evenly; weights by rows and by columns.
    for weight in (w, w.mT.contiguous().mT):
        for activation in (None, "relu", "gelu", "leaky_relu"):

            def layer(x, w, b, activation=activation):
                return tw.matmul(x, w, bias=b, activation=activation)

            assert agree(layer, [x, weight, b], [whole, whole, whole], mesh) == whole
            assert agree(layer, [x, weight, b], [whole, columns, rows], mesh) == columns
            assert agree(layer, [x, weight, b], [rows, whole, whole], mesh) == rows
    assert agree(tw.matmul, [double(3, 5, 6), w], [columns, whole], mesh) == columns
    assert agree(tw.matmul, [double(3, 5, 6), w], [rows, whole], mesh) == rows
    split = agree(lambda x, w, b: tw.matmul(x, w, bias=b), [x, w, b], [columns, rows, whole], mesh)
    assert split == Partial()
    assert len(own) == 27
    # A mode, and placements that do not fit together.
    a = on(x, whole)
    with CommDebugMode():
        tw.matmul(a, on(w, columns))
    assert len(own) == 27
    assert agree(tw.matmul, [x, w], [columns, whole], mesh) is not None
    assert agree(lambda x, w: tw.matmul(x, w, activation="relu"), [x, w], [columns, rows], mesh) is not None
    # Without gradients, and gradients of gradients.
    with torch.no_grad():
        got = tw.matmul(a, on(w, columns), activation="silu")
    assert not got.requires_grad
    torch.testing.assert_close(got.full_tensor(), F.silu(x @ w))
    found = []
    for given in ([x, w], [on(x, whole), on(w, columns)]):
        given = [t.detach().requires_grad_() for t in given]
        result = tw.matmul(*given, activation="gelu")
        first = torch.autograd.grad((result * result).sum(), given, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), given)
        found.append([getattr(t, "full_tensor", lambda t=t: t)() for t in (*first, *second)])
    torch.testing.assert_close(*found)
    # What is wrong is told as ever.
    with pytest.raises((RuntimeError, tw.ShapeError), match="a's last size 6 must equal"):
        tw.matmul(a, a)
    layer = tilewise.torch.Linear(6, 4).to(x)
    layer.weight = torch.nn.Parameter(on(layer.weight.detach(), rows))
    layer.bias = torch.nn.Parameter(on(layer.bias.detach(), rows))
    before = len(own)
    layer(a).sum().backward()
    assert len(own) == before + 1
    assert layer.weight.grad.placements == (rows,)
    torch.testing.assert_close(layer.weight.grad.full_tensor(), x.sum(0).expand(4, 6))
    torch.testing.assert_close(layer.bias.grad.full_tensor(), torch.full_like(x[0, :4], 5.0))
    sharded.local_product = product


def data_parallel(mesh, rank):
    single = tilewise.torch.Linear(6, 5, activation="silu").double()
    model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(single))
    x, target = torch.randn(8, 6, dtype=torch.float64), torch.randint(0, 5, (8,))
    half = slice(4 * rank, 4 * rank + 4)
    F.nll_loss(tw.log_softmax(model(x[half])), target[half]).backward()
    F.nll_loss(tw.log_softmax(single(x)), target).backward()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
