"""Options that make no sense get an error of ours: no panic, no crash, no wrong number."""

import numpy as np
import pytest
import tilewise as tw
import torch

x = torch.randn(4, 4)


def kind(value):
    """The same in every process, which text of a tensor or an object is not."""
    return type(value).__name__


@pytest.mark.parametrize("dim", [None, "0", 1.0, [0], (0, 1), x, 2**80, -(2**80), 1j, object()], ids=kind)
def test_dims_that_are_none(dim):
    with pytest.raises(tw.TilewiseError, match="dim"):
        tw.softmax(x, dim)


@pytest.mark.parametrize("dim", [2, -3, 100, 2**31, 2**63 - 1, -(2**63)])
def test_dims_out_of_range(dim):
    for op in (tw.softmax, tw.log_softmax):
        with pytest.raises(tw.DimError, match="out of range"):
            op(x, dim)


@pytest.mark.parametrize("dim", [True, np.int64(1), torch.tensor(1)], ids=["bool", "numpy", "torch"])
def test_dims_that_python_calls_integers(dim):
    assert torch.equal(tw.softmax(x, dim), tw.softmax(x, 1))


@pytest.mark.parametrize(
    "dtype",
    [
        int,
        bool,
        complex,
        str,
        "int32",
        "float",
        "f99",
        "",
        3,
        1.5,
        object(),
        torch.int8,
        torch.complex64,
        [],
        x,
    ],
    ids=kind,
)
def test_dtypes_that_softmax_cannot_return(dtype):
    with pytest.raises(tw.DTypeError, match="dtype="):
        tw.softmax(x, dtype=dtype)


@pytest.mark.parametrize(
    "alpha",
    ["2", None, [1], 1j, object(), x, 2**64, -(2**64), 10**5000],
    ids=kind,
)
def test_alphas_that_are_none(alpha):
    with pytest.raises(tw.DTypeError, match="alpha"):
        tw.add(x, x, alpha=alpha)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**5000], ids=["2^64", "-2^63-1", "10^5000"])
def test_numbers_beyond_64_bits(number):
    with pytest.raises(tw.DTypeError, match="int64 or uint64"):
        tw.add(x, number)


@pytest.mark.parametrize(
    "activation", ["", "RELU", "relu ", "tanh", 1, True, object(), ["relu"], torch.relu, "a" * 10_000]
)
def test_activations_that_are_none(activation):
    with pytest.raises(tw.OptionError, match="activation="):
        tw.matmul(x, x, activation=activation)


@pytest.mark.parametrize("precision", ["", "IEEE", "high", None, 1, object()])
def test_precisions_that_are_none(precision):
    with pytest.raises(tw.OptionError, match="precision="):
        tw.matmul(x, x, precision=precision)


@pytest.mark.parametrize(
    "slope", ["steep", None, [1], 1j, 10**400], ids=["str", "None", "list", "complex", "huge"]
)
def test_slopes_that_are_none(slope):
    with pytest.raises(tw.TilewiseError, match="negative_slope"):
        tw.matmul(x, x, activation="leaky_relu", negative_slope=slope)


def test_calls_with_the_wrong_arguments():
    for call in (
        lambda: tw.add(),
        lambda: tw.add(x),
        lambda: tw.add(x, x, 2),
        lambda: tw.add(x, x, beta=2),
        lambda: tw.softmax(),
        lambda: tw.softmax(x, 0, torch.float32),
        lambda: tw.softmax(x, dim=0, axis=0),
        lambda: tw.matmul(x),
        lambda: tw.matmul(x, x, x),
        lambda: tw.matmul(x, x, **{"": 1}),
    ):
        with pytest.raises(TypeError):
            call()


class FromElsewhere:
    """An integer of the caller's own."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_dim_may_be_anything_that_is_an_index():
    x = torch.randn(3, 4)
    assert torch.equal(tw.softmax(x, FromElsewhere(0)), tw.softmax(x, 0))


def test_an_exception_of_the_callers_own_index_is_passed_on():
    with pytest.raises(ZeroDivisionError, match="mine"):
        tw.softmax(torch.randn(3), FromElsewhere(ZeroDivisionError("mine")))
