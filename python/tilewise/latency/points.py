"""What measurements must be to be fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewise import DTypeError, ShapeError, TilewiseError

Array: TypeAlias = NDArray[np.float64]
Several: TypeAlias = "Sequence[float] | NDArray[Any]"
Numbers: TypeAlias = "float | Several"

# Columns of length one that are this close to dependent are told apart by rounding errors alone.
DEPENDENT = 1e-8


class FitError(TilewiseError, ValueError):
    """Measurements that do not determine the model, or numbers that have no logarithm."""


def positive(name: str, values: Numbers) -> Array:
    """The values as float64, all of them finite and above zero."""
    try:
        array: Array = np.asarray(values, dtype=np.float64).copy()
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{name}: cannot be read as an array of numbers ({error})") from error
    if (bad := ~(np.isfinite(array) & (array > 0))).any():
        where = np.argwhere(bad)[0]
        value, place = array[tuple(where)], "".join(f"[{i}]" for i in where)
        raise FitError(f"{name}{place} is {value:g}; every value must be finite and above 0")
    array.flags.writeable = False
    return array


def columns(inputs: Mapping[str, Numbers], times: Numbers) -> tuple[dict[str, Array], Array]:
    """Inputs and times as one-dimensional arrays of one length."""
    arrays = {name: positive(name, values) for name, values in {**inputs, "y": times}.items()}
    for name, array in arrays.items():
        if array.ndim != 1:
            raise ShapeError(
                f"{name} has shape {array.shape}; one dimension, a value per measurement, is needed"
            )
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise ShapeError(f"a measurement has one value of each, but the lengths differ: {lengths}")
    return arrays, arrays.pop("y")


def check_determined(inputs: Mapping[str, Array], design: Array) -> None:
    """Refuses places of measurement that leave a coefficient open, or no way to judge the fit."""
    names = " and ".join(inputs)
    needed = design.shape[1] + 1
    for name, array in inputs.items():
        if len(array) and (array == array[0]).all():
            raise FitError(f"{name} is {array[0]:g} in every measurement: measure at several values of it")
    places = len(np.unique(np.column_stack(list(inputs.values())), axis=0))
    if places < needed:
        raise FitError(
            f"measured at {places} different {names}; {needed} are needed: {needed - 1} to determine the "
            f"{needed - 1} coefficients, and one more to tell whether the model holds"
        )
    rank = np.linalg.matrix_rank(design / np.linalg.norm(design, axis=0), tol=DEPENDENT)
    if rank < design.shape[1]:
        why = (
            f"{names} rise and fall together, so that their effects cannot be told apart: vary one while the "
            "other stays"
            if len(inputs) > 1
            else f"the values of {names} hardly differ: measure over a wider range"
        )
        raise FitError(f"the coefficients are not determined: {why}")
