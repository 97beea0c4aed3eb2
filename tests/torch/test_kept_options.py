"""Options that are objects with a value, which changes after the call: gradients are those of the call."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import tilewise as tw
import tilewise.torch
import torch
from support.releases import nested_transforms
from torch.utils._python_dispatch import TorchDispatchMode


class Index:
    """Has an `__index__`, and another one later."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Changing:
    """An option, and how it gets another value."""

    def __init__(self, kind, value):
        if kind is Index:
            self.option = Index(value)
            self.change = partial(setattr, self.option, "value")
        else:
            # Not by an operation of torch's, which torch.func would refuse.
            memory = np.array(value, dtype="f4" if isinstance(value, float) else "i8")
            self.option = torch.from_numpy(memory)
            self.change = partial(memory.__setitem__, ())


class Through(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


ops = torch.ops.tilewise
float64 = torch.float64
x, w, g = (torch.randn(3, 3, dtype=float64, generator=torch.Generator().manual_seed(k)) for k in range(3))

# Of two tensors and an option; then a value of the option, another of the same type, and how they are given.
CALLS = {
    "add": (lambda x, y, o: tw.add(x, y, alpha=o), 2.0, 100.0, torch.Tensor),
    "add, whole": (lambda x, y, o: tw.add(x, y, alpha=o), 2, 100, torch.Tensor),
    "add.Scalar": (lambda x, _, o: tw.add(x, 3, alpha=o), 2, 100, torch.Tensor),
    "softmax": (lambda x, _, o: tw.softmax(x, o), 0, 1, Index),
    "softmax, tensor": (lambda x, _, o: tw.softmax(x, o), 0, 1, torch.Tensor),
    "softmax, dtype": (lambda x, _, o: tw.softmax(x.float(), o, dtype=float64), 0, 1, Index),
    "log_softmax": (lambda x, _, o: tw.log_softmax(x, dim=o), 0, 1, Index),
    "softmax_backward": (lambda x, y, o: tw.softmax_backward(x, y, o), 0, 1, Index),
    "log_softmax_backward": (lambda x, y, o: tw.log_softmax_backward(x, y, o), 0, 1, torch.Tensor),
    "matmul": (
        lambda x, y, o: tw.matmul(x, y, activation="leaky_relu", negative_slope=o),
        0.25,
        100.0,
        torch.Tensor,
    ),
    "matmul, slope below zero": (
        lambda x, y, o: tw.matmul(x, y, activation="leaky_relu", negative_slope=o),
        -0.25,
        100.0,
        torch.Tensor,
    ),
    "ops.softmax": (lambda x, _, o: ops.softmax(x, o), 0, 1, torch.Tensor),
    "ops.matmul": (
        lambda x, y, o: ops.matmul(x, y, activation="leaky_relu", negative_slope=o),
        0.25,
        100.0,
        torch.Tensor,
    ),
}


def gradients(call, option, after=lambda: None, order=1):
    """The result, and gradients up to an order; `after` is called after the call."""
    inputs = [t.clone().requires_grad_() for t in (x, w)]
    results = [call(*inputs, option)]
    after()
    for _ in range(order):
        sums = results[-1] if isinstance(results[-1], tuple) else (results[-1],)
        total = sum((t * g).square().sum() for t in sums if t is not None)
        results.append(torch.autograd.grad(total, inputs, create_graph=order > 1, allow_unused=True))
    return results


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("surroundings", [nullcontext, Through], ids=["plain", "mode"])
@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_of_the_value_at_the_call(name, surroundings, order):
    call, value, later, kind = CALLS[name]
    expected = gradients(call, value, order=order)
    changing = Changing(kind, value)
    with surroundings():
        got = gradients(call, changing.option, lambda: changing.change(later), order)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "transform", ["jacrev", "jacfwd", pytest.param("hessian", marks=nested_transforms), "vmap"]
)
def test_inside_torch_func_too(name, transform):
    call, value, later, kind = CALLS[name]
    changing = Changing(kind, value)

    def changed(x):
        changing.change(value)
        result = call(x, w, changing.option)
        changing.change(later)
        return result.square().sum()

    transform = getattr(torch.func, transform)
    expected = transform(lambda x: call(x, w, value).square().sum())
    stacked = torch.stack([x, g]) if transform is torch.func.vmap else x
    torch.testing.assert_close(transform(changed)(stacked), expected(stacked))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_compiled_calls_too(name):
    call, value, later, kind = CALLS[name]
    torch._dynamo.reset()
    changing = Changing(kind, value)
    # With graph breaks: what has to be read is no part of a graph.
    compiled = torch.compile(call, backend="aot_eager")
    got = gradients(compiled, changing.option, lambda: changing.change(later))
    torch.testing.assert_close(got, gradients(call, value))
