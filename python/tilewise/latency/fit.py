"""Ordinary least squares in the logarithms, with Student t intervals: of numbers, and of a CSV file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from scipy.special import stdtrit

from .measurements import FitError, Numbers, check_determined, columns, read_csv
from .models import Coefficient, LatencyModel, TpotModel, TtftModel

Model = TypeVar("Model", bound=LatencyModel)


def fit_tpot(t: Numbers, y: Numbers, *, confidence: float = 0.95, unit: str = "") -> TpotModel:
    """Fits TPOT(t) = k1 * log(t) + b1 to measured times y.

    Args:
        t: tokens or sequences served together, one for each measurement; at least 3 different values.
        y: the time per output token measured there, in any unit.
        confidence: of the intervals, between 0 and 1.
        unit: of y, as a label of what is printed and drawn.

    Returns:
        TpotModel: coefficients k1 and b1 with intervals, residuals, R^2, `predict(t)`, `interval(t)`.

    Raises:
        FitError (a ValueError): a value is not finite or not above 0, or k1 and b1 are not determined.
        ShapeError: t and y are not one-dimensional or differ in length.
        DTypeError: they hold something that is not a number.
    """
    return _fit(TpotModel, {"t": t}, y, confidence, unit)


def fit_ttft(s: Numbers, t: Numbers, y: Numbers, *, confidence: float = 0.95, unit: str = "") -> TtftModel:
    """Fits TTFT(s, t) = k2 * log(t) + k3 * log(s) + b2 to measured times y.

    Args:
        s: length of the prompt in tokens, one for each measurement.
        t: tokens or sequences served together; at least 4 different pairs (s, t), not all on one curve
            s = a * t**b, on which the effects of s and t cannot be separated.
        y: the time to first token measured there, in any unit.
        confidence: of the intervals, between 0 and 1.
        unit: of y, as a label of what is printed and drawn.

    Returns:
        TtftModel: coefficients k2, k3 and b2 with intervals, residuals, R^2, `predict(s, t)` and
            `interval(s, t)`.

    Raises:
        As `fit_tpot`.
    """
    return _fit(TtftModel, {"s": s, "t": t}, y, confidence, unit)


def fit_csv(path: str | os.PathLike[str], *, confidence: float = 0.95) -> list[LatencyModel]:
    """Fits every model whose times the file has.

    The first line names the columns: `t` and `tpot`; `s`, `t` and `ttft`; or all of them. A name such as
    `tpot_ms` (also `_s`, `_us`, `_ns`) says the unit. A cell of `tpot` or `ttft` may be empty; other columns
    are ignored.

    Raises:
        FitError: as `fit_tpot`, or the file does not have each of these columns once, or a cell is not a
            number above 0.
        OSError: the file cannot be read.
    """
    _check_confidence(confidence)
    path = Path(path)
    models: list[LatencyModel] = []
    found = list(read_csv(path))
    remedy = "; without this column the other is fitted" if len(found) > 1 else ""
    for series in found:
        fit: Callable[..., LatencyModel] = fit_tpot if series.model == "tpot" else fit_ttft
        try:
            models.append(fit(*series.numbers, confidence=confidence, unit=series.unit))
        except FitError as error:
            raise FitError(f"{path.name}, {series.column}: {error}{remedy}") from None
    return models


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise FitError(f"confidence is {confidence}; it must lie between 0 and 1, as 0.95 does")


def _fit(model: type[Model], given: Mapping[str, Numbers], y: Numbers, confidence: float, unit: str) -> Model:
    _check_confidence(confidence)
    inputs, times = columns(given, y)
    design = model.design(inputs)
    check_determined(inputs, design)

    # By QR: the normal equations would square the condition of the design.
    q, r = np.linalg.qr(design)
    inverse = np.linalg.inv(r)
    values = inverse @ (q.T @ times)
    residuals = times - design @ values
    freedom = len(times) - len(values)
    variance = float(residuals @ residuals) / freedom
    covariance = variance * (inverse @ inverse.T)
    errors = np.sqrt(np.diag(covariance))
    quantile = float(stdtrit(freedom, (1 + confidence) / 2))

    for array in (residuals, covariance):
        array.flags.writeable = False
    about_mean = times - times.mean()
    return model(
        coefficients=MappingProxyType(
            {
                name: Coefficient(value, error, value - quantile * error, value + quantile * error)
                for name, value, error in zip(model.names, values.tolist(), errors.tolist(), strict=True)
            }
        ),
        confidence=confidence,
        inputs=MappingProxyType(inputs),
        times=times,
        residuals=residuals,
        r_squared=1 - variance * freedom / float(about_mean @ about_mean) if np.ptp(times) else float("nan"),
        degrees_of_freedom=freedom,
        residual_std=variance**0.5,
        covariance=covariance,
        t_quantile=quantile,
        unit=unit,
    )
