"""What a fit returns: coefficients with their intervals, how good it is, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, overload

import numpy as np

from .measurements import Array, Numbers, Several, positive


@dataclass(frozen=True)
class Coefficient:
    """An estimate, its standard error, and the ends of its confidence interval."""

    value: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """A fitted model. Its intervals assume independent errors of the same size everywhere."""

    title: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    """The coefficients."""
    factors: ClassVar[tuple[str, ...]]
    """The inputs whose logarithms all coefficients but the last multiply."""

    coefficients: Mapping[str, Coefficient]
    confidence: float
    """How often such intervals contain the true value, were everything measured again: 0.95."""
    inputs: Mapping[str, Array]
    """Where it was measured, by name."""
    times: Array
    """The times measured there."""
    residuals: Array
    """Measured less predicted, in the order and unit of the times."""
    r_squared: float
    """The share of the times' variance that the model explains; NaN if all times are alike."""
    degrees_of_freedom: int
    """Measurements less coefficients."""
    residual_std: float
    """Estimate of the standard deviation of one measurement."""
    covariance: Array
    """Of the estimates, in the order of `names`."""
    t_quantile: float
    """Half of an interval's width, in standard errors."""
    unit: str
    """Of the times: a label, nothing is converted."""

    @classmethod
    def design(cls, inputs: Mapping[str, Array]) -> Array:
        """One row a point: the logarithms in the order of `factors`, and 1."""
        logs = np.broadcast_arrays(*(np.log(inputs[name]) for name in cls.factors))
        return np.stack([*logs, np.ones_like(logs[0])], axis=-1)

    @property
    def formula(self) -> str:
        """With the fitted numbers: `TPOT(t) = 2.871*log(t) + 20.08 ms`."""
        products = [f"{self.coefficients[name].value:.4g}" for name in self.names]
        terms = [f"{k}*log({name})" for k, name in zip(products, self.factors, strict=False)] + products[-1:]
        right = " + ".join(terms).replace("+ -", "- ")
        return f"{self.title}({', '.join(self.inputs)}) = {right} {self.unit}".rstrip()

    @property
    def quality(self) -> str:
        """How far to trust it, in one line."""
        intervals = f"{100 * self.confidence:g}% intervals"
        freedom = f"{self.degrees_of_freedom} degree{'s' * (self.degrees_of_freedom > 1)} of freedom"
        residual = f"residual std {self.residual_std:.3g} {self.unit}".rstrip()
        return f"{intervals} (Student t, {freedom}), R^2 = {self.r_squared:.4f}, {residual}"

    def __str__(self) -> str:
        intervals = [
            f"  {name} = {c.value:.4g}, {c.low:.4g} to {c.high:.4g}" for name, c in self.coefficients.items()
        ]
        return "\n".join([self.formula, *intervals, f"  {self.quality}"])

    def as_dict(self) -> dict[str, Any]:
        """The fit and its measurements as plain data, for JSON."""
        rows = np.column_stack([*self.inputs.values(), self.times, self.residuals]).tolist()
        return {
            "model": self.title,
            "formula": self.formula,
            "unit": self.unit,
            "confidence": self.confidence,
            "coefficients": {name: asdict(c) for name, c in self.coefficients.items()},
            "r_squared": None if np.isnan(self.r_squared) else self.r_squared,
            "degrees_of_freedom": self.degrees_of_freedom,
            "residual_std": self.residual_std,
            "measurements": [dict(zip((*self.inputs, "time", "residual"), row, strict=True)) for row in rows],
        }

    def _predict(self, **inputs: Numbers) -> Any:
        rows = self.design({name: positive(name, values) for name, values in inputs.items()})
        predicted = rows @ np.array([c.value for c in self.coefficients.values()])
        return predicted if predicted.ndim else float(predicted)

    def _interval(self, **inputs: Numbers) -> tuple[Any, Any]:
        rows = self.design({name: positive(name, values) for name, values in inputs.items()})
        error = np.sqrt(np.einsum("...i,ij,...j", rows, self.covariance, rows))
        middle, half = self._predict(**inputs), self.t_quantile * (error if error.ndim else float(error))
        return middle - half, middle + half


class TpotModel(LatencyModel):
    """TPOT(t) = k1 * log(t) + b1."""

    title = "TPOT"
    names = ("k1", "b1")
    factors = ("t",)

    @property
    def k1(self) -> float:
        return self.coefficients["k1"].value

    @property
    def b1(self) -> float:
        return self.coefficients["b1"].value

    @overload
    def predict(self, t: float) -> float: ...
    @overload
    def predict(self, t: Several) -> Array: ...
    def predict(self, t: Numbers) -> float | Array:
        """The time at t, above 0: a float for a number, float64 of t's shape for an array."""
        return self._predict(t=t)  # type: ignore[no-any-return]

    @overload
    def interval(self, t: float) -> tuple[float, float]: ...
    @overload
    def interval(self, t: Several) -> tuple[Array, Array]: ...
    def interval(self, t: Numbers) -> tuple[float | Array, float | Array]:
        """Lower and upper end of the confidence interval of the mean time at t, of t's shape."""
        return self._interval(t=t)


class TtftModel(LatencyModel):
    """TTFT(s, t) = k2 * log(t) + k3 * log(s) + b2."""

    title = "TTFT"
    names = ("k2", "k3", "b2")
    factors = ("t", "s")

    @property
    def k2(self) -> float:
        return self.coefficients["k2"].value

    @property
    def k3(self) -> float:
        return self.coefficients["k3"].value

    @property
    def b2(self) -> float:
        return self.coefficients["b2"].value

    @overload
    def predict(self, s: float, t: float) -> float: ...
    @overload
    def predict(self, s: Numbers, t: Several) -> Array: ...
    @overload
    def predict(self, s: Several, t: Numbers) -> Array: ...
    def predict(self, s: Numbers, t: Numbers) -> float | Array:
        """The time at s and t, above 0 and broadcast: a float for two numbers, float64 for arrays."""
        return self._predict(s=s, t=t)  # type: ignore[no-any-return]

    @overload
    def interval(self, s: float, t: float) -> tuple[float, float]: ...
    @overload
    def interval(self, s: Numbers, t: Several) -> tuple[Array, Array]: ...
    @overload
    def interval(self, s: Several, t: Numbers) -> tuple[Array, Array]: ...
    def interval(self, s: Numbers, t: Numbers) -> tuple[float | Array, float | Array]:
        """Lower and upper end of the confidence interval of the mean time at s and t, broadcast."""
        return self._interval(s=s, t=t)
