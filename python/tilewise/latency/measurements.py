"""Measurements: read from CSV files, and checked before a fit."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewise import DTypeError, ShapeError, TilewiseError

Array: TypeAlias = NDArray[np.float64]
Several: TypeAlias = "Sequence[float] | NDArray[Any]"
Numbers: TypeAlias = "float | Several"

# Columns of length one that are this close to dependent are told apart by rounding errors alone.
DEPENDENT = 1e-8
# Columns of times, with their unit.
TIME = re.compile(r"(tpot|ttft)(?:_(s|ms|us|ns))?")


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


class Series(NamedTuple):
    """The measurements of one column of times."""

    column: str
    model: str
    unit: str
    # The inputs of the model, then the times.
    numbers: list[list[float]]


def read_csv(path: Path) -> Iterator[Series]:
    try:
        header, rows = _read(path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise FitError(f"{path.name} cannot be read as CSV: {error}") from None
    if twice := [name for name in dict.fromkeys(header) if name and header.count(name) > 1]:
        raise FitError(f"{path.name} has more than one column {' and '.join(twice)}")
    found = [match for name in header if (match := TIME.fullmatch(name))]
    if not found:
        raise FitError(
            f"{path.name} has no column tpot or ttft (tpot_ms, ttft_s, ...); its columns: {', '.join(header)}"
        )
    for match in found:
        column, model, unit = match[0], match[1], match[2] or ""
        inputs = ("t",) if model == "tpot" else ("s", "t")
        if missing := [name for name in inputs if name not in header]:
            raise FitError(f"{path.name} has {column} but no column {' and no '.join(missing)}")
        measured = [(line, row) for line, row in rows if row[column]]
        numbers = [
            [_number(row[name], f"{path.name}, line {line}: {name}") for line, row in measured]
            for name in (*inputs, column)
        ]
        yield Series(column, model, unit, numbers)


def _read(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The names of the columns, and each further row with the number of its line."""
    # utf-8-sig: spreadsheets put a mark at the beginning.
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip().lower() for name in next(reader, [])]
        rows = []
        for cells in (list(map(str.strip, line)) for line in reader):
            # One too many may be a decimal comma, which would be read as another number.
            if any(cells[len(header) :]):
                line = f"{path.name}, line {reader.line_num}"
                raise FitError(f"{line} has {len(cells)} cells, the first line {len(header)}")
            rows.append((reader.line_num, dict(zip_longest(header, cells[: len(header)], fillvalue=""))))
    return header, rows


def _number(cell: str, place: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        raise FitError(f"{place} is {cell!r}, which is not a number") from None
    return float(positive(place, number))
