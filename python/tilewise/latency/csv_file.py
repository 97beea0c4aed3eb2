"""Measurements from a CSV file."""

from __future__ import annotations

import csv
import os
import re
from itertools import zip_longest
from pathlib import Path

from .fit import fit_tpot, fit_ttft
from .models import LatencyModel
from .points import FitError, positive

TIME = re.compile(r"(tpot|ttft)(?:_(s|ms|us|ns))?")


def fit_csv(path: str | os.PathLike[str], *, confidence: float = 0.95) -> list[LatencyModel]:
    """Fits every model whose times the file has.

    The first line names the columns: `t` and `tpot`; `s`, `t` and `ttft`; or all of them. A name such as
    `tpot_ms` (also `_s`, `_us`, `_ns`) says the unit. A cell of `tpot` or `ttft` may be empty; other columns
    are ignored.

    Raises:
        FitError: as `fit_tpot`, or the file has not these columns once, or a cell is no number above 0.
        OSError: the file cannot be read.
    """
    path = Path(path)
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
    models: list[LatencyModel] = []
    for match in found:
        inputs = ("t",) if match[1] == "tpot" else ("s", "t")
        if missing := [name for name in inputs if name not in header]:
            raise FitError(f"{path.name} has {match[0]} but no column {' and no '.join(missing)}")
        measured = [(line, row) for line, row in rows if row[match[0]]]
        numbers = [
            [_number(row[name], f"{path.name}, line {line}: {name}") for line, row in measured]
            for name in (*inputs, match[0])
        ]
        unit = match[2] or ""
        try:
            if match[1] == "tpot":
                models.append(fit_tpot(*numbers, confidence=confidence, unit=unit))
            else:
                models.append(fit_ttft(*numbers, confidence=confidence, unit=unit))
        except FitError as error:
            raise FitError(f"{path.name}, {match[0]}: {error}") from None
    return models


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
        raise FitError(f"{place} is {cell!r}, which is no number") from None
    return float(positive(place, number))
