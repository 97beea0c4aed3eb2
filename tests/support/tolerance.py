"""How far a result may be from its float64 reference: one rounding, and what an operation adds to it."""

import torch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
ALL = [torch.bool, *INTEGERS, *FLOATS]

# Half a step in the last place, relative to the value.
ROUNDING = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
# Half of the smallest subnormal number; all of it in float64, where the reference is rounded as well.
TINY = {
    torch.float16: 2.0**-25,
    torch.bfloat16: 2.0**-134,
    torch.float32: 2.0**-150,
    torch.float64: 2.0**-1074,
}
# What float32 arithmetic may lose of a subnormal result.
SUBNORMAL_STEP = {
    torch.float16: 2.0**-149,
    torch.bfloat16: 2.0**-149,
    torch.float32: 2.0**-149,
    torch.float64: 0.0,
}
# The rounding of the type that sums are formed in.
ARITHMETIC = {
    torch.float16: 2.0**-24,
    torch.bfloat16: 2.0**-24,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}


def assert_rounded(got, reference, error=0.0, context=""):
    """`got` is the float64 `reference` after one rounding to its dtype, up to `error` before that rounding.

    NaN and infinities must be where the reference has them.
    """
    assert got.shape == reference.shape, f"{context} shape {got.shape}, expected {reference.shape}"
    assert got.device == reference.device, f"{context} on {got.device}, expected {reference.device}"
    value = got.double()
    limit = reference.abs() * ROUNDING[got.dtype] * 1.0001 + TINY[got.dtype] + error
    # A finite reference may round to infinity, but only from beyond the largest number.
    largest = torch.finfo(got.dtype).max
    overflows = value.isinf() & (reference.abs() + limit > largest) & (value.sign() == reference.sign())
    close = (value - reference).abs() <= limit
    exact = (value == reference) | (value.isnan() & reference.isnan())
    bad = ~torch.where(reference.isfinite() & ~value.isnan(), close | overflows, exact)
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        limit = limit.expand_as(reference)[where].item()
        raise AssertionError(
            f"{context} {int(bad.sum())} of {bad.numel()} elements of {got.dtype} are wrong, first at "
            f"{where}: got {value[where].item()!r}, expected {reference[where].item()!r} within {limit:.3g}"
        )


def assert_identical(got, expected, context=""):
    """The same dtype, shape, device and bits; every NaN counts as the same."""
    assert got.dtype == expected.dtype, f"{context} dtype {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"{context} shape {got.shape}, expected {expected.shape}"
    assert got.device == expected.device, f"{context} on {got.device}, expected {expected.device}"
    same = got == expected
    if got.dtype.is_floating_point:
        same |= got.isnan() & expected.isnan()
    if not same.all():
        where = tuple((~same).nonzero()[0].tolist())
        raise AssertionError(
            f"{context} {int((~same).sum())} of {same.numel()} elements differ, first at {where}: "
            f"got {got[where].item()!r}, expected {expected[where].item()!r}"
        )
