"""torch.func: vmap, grad, and one inside the other."""

import pytest
import tilewise as tw
import torch
import torch.nn.functional as F
from support.releases import nested_transforms
from torch.func import functionalize, grad, jacrev, vjp, vmap

# tilewise's, torch's, the shapes of the arguments.
CASES = {
    "add": (lambda x, y: tw.add(x, y, alpha=2), lambda x, y: x + 2 * y, ((3, 4), (4,))),
    "add of a number": (lambda x: tw.add(x, 1.5), lambda x: x + 1.5, ((3, 4),)),
    "softmax": (lambda x: tw.softmax(x, 0), lambda x: torch.softmax(x, 0), ((3, 4),)),
    "softmax of one number": (lambda x: tw.softmax(x, 0), lambda x: torch.softmax(x, 0), ((),)),
    "log_softmax": (tw.log_softmax, lambda x: torch.log_softmax(x, -1), ((3, 4),)),
    "matmul": (tw.matmul, torch.matmul, ((3, 4), (4, 5))),
    "matmul of a vector": (tw.matmul, torch.matmul, ((4,), (4, 5))),
    "matmul by a vector": (tw.matmul, torch.matmul, ((3, 4), (4,))),
    "matmul of vectors": (tw.matmul, torch.matmul, ((4,), (4,))),
    "matmul of batches": (tw.matmul, torch.matmul, ((2, 3, 4), (4, 5))),
    "matmul of batch by matrix": (tw.matmul, torch.matmul, ((3, 4), (2, 4, 5))),
    "leaky_relu": (
        lambda a, b, c: tw.matmul(a, b, bias=c, activation="leaky_relu"),
        lambda a, b, c: F.leaky_relu(a @ b + c),
        ((3, 4), (4, 5), (5,)),
    ),
    "gelu": (
        lambda a, b, c: tw.matmul(a, b, bias=c, activation="gelu"),
        lambda a, b, c: F.gelu(a @ b + c),
        ((3, 4), (4, 5), (5,)),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def arguments(shapes, batched, device, batch=6):
    return tuple(
        torch.randn(((batch,) if i in batched else ()) + s, device=device, dtype=torch.float64)
        for i, s in enumerate(shapes)
    )


def test_vmap(device, case):
    ours, theirs, shapes = case
    for which in range(1, 2 ** len(shapes)):
        batched = [i for i in range(len(shapes)) if which >> i & 1]
        inputs = arguments(shapes, batched, device)
        in_dims = tuple(0 if i in batched else None for i in range(len(shapes)))
        torch.testing.assert_close(vmap(ours, in_dims)(*inputs), vmap(theirs, in_dims)(*inputs))


def test_vmap_over_another_dimension(device, case):
    ours, theirs, shapes = case
    inputs = tuple(t.movedim(0, -1) for t in arguments(shapes, range(3), device))
    torch.testing.assert_close(vmap(ours, -1)(*inputs), vmap(theirs, -1)(*inputs))


@nested_transforms
def test_vmap_twice(device, case):
    ours, theirs, shapes = case
    inputs = tuple(torch.stack([t, t + 1]) for t in arguments(shapes, range(3), device, batch=2))
    torch.testing.assert_close(vmap(vmap(ours))(*inputs), vmap(vmap(theirs))(*inputs))


def test_numbers_promote_as_numbers(device):
    numbers, rows = torch.randn(6, device=device, dtype=torch.float64), torch.randn(6, 4, device=device)
    for ours, theirs in ((tw.add, torch.add), (lambda x, y: tw.add(y, x), lambda x, y: y + x)):
        got, expected = vmap(ours)(numbers, rows), vmap(theirs)(numbers, rows)
        assert got.dtype == expected.dtype == torch.float32
        torch.testing.assert_close(got, expected)


def test_gradients_of_examples(device, case):
    ours, theirs, shapes = case
    inputs = arguments(shapes, [0], device)
    in_dims = (0,) + (None,) * (len(shapes) - 1)

    def each(function):
        return vmap(grad(lambda *t: function(*t).square().sum(), tuple(range(len(shapes)))), in_dims)(*inputs)

    torch.testing.assert_close(each(ours), each(theirs))


@nested_transforms
def test_second_derivatives(device, case):
    ours, theirs, shapes = case
    inputs = arguments(shapes, [], device)

    def second(function):
        return jacrev(jacrev(lambda *t: function(*t).square().sum()))(*inputs)

    torch.testing.assert_close(second(ours), second(theirs))


def test_vjp_and_functionalize(device, case):
    ours, theirs, shapes = case
    inputs = arguments(shapes, [], device)
    expected, expected_vjp = vjp(theirs, *inputs)
    got, got_vjp = vjp(ours, *inputs)
    torch.testing.assert_close(got, expected)
    seed = torch.randn_like(expected)
    torch.testing.assert_close(got_vjp(seed), expected_vjp(seed))
    torch.testing.assert_close(functionalize(ours)(*inputs), expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tw.add(x, x),
        lambda x: tw.add(x, 1),
        lambda x: tw.softmax(x, 0),
        tw.log_softmax,
        lambda x: tw.matmul(x, x.mT),
        lambda x: tw.matmul(x.mT, x),
        lambda x: tw.softmax_backward(x, x),
    ],
)
def test_functionalize_sees_calls_on_empty_tensors(device, call):
    def inside(x):
        assert torch._is_functional_tensor(x)
        result = call(x)
        assert torch._is_functional_tensor(result)
        return result

    x = torch.empty(0, 3, device=device)
    for _ in range(5):  # like ones on memory, which are remembered
        expected = call(x)
        assert torch.equal(functionalize(inside)(x), expected)


@nested_transforms
def test_a_parameter_inside_a_transform(device):
    weight = torch.randn(4, 4, device=device, requires_grad=True)
    x = torch.randn(6, 4, device=device)
    got = vmap(lambda row: tw.matmul(row, tw.softmax(weight)))(x).sum()
    expected = (x @ torch.softmax(weight, -1)).sum()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got, weight), torch.autograd.grad(expected, weight))


def test_a_dim_out_of_range_stays_out_of_range():
    for dim in (1, -2):
        with pytest.raises(IndexError):
            vmap(tw.softmax, (0, None))(torch.randn(3, 4), dim)
