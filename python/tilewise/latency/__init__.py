"""Two models of a language model's latency, fitted to measurements by least squares.

    TPOT(t)    = k1 * log(t) + b1                   time per output token
    TTFT(s, t) = k2 * log(t) + k3 * log(s) + b2     time to first token

s is the length of the prompt in tokens, t the number of tokens or of sequences that are served together; log
is the natural logarithm. Times, and so the coefficients, are in the unit of the measurements.

    >>> from tilewise.latency import fit_tpot
    >>> model = fit_tpot([1, 2, 4, 8, 16], [20.1, 22.0, 24.2, 25.9, 28.1], unit="ms")
    >>> print(model)
    TPOT(t) = 2.871*log(t) + 20.08 ms
      k1 = 2.871, 2.682 to 3.06
      b1 = 20.08, 19.76 to 20.4
      95% intervals (Student t, 3 degrees of freedom), R^2 = 0.9987, residual std 0.13 ms
    >>> round(model.predict(32), 1)
    30.0

From the command line: `python -m tilewise.latency fit data.csv --plot out.png`.
"""

try:
    from .fit import fit_csv, fit_tpot, fit_ttft
    from .measurements import FitError
    from .models import Coefficient, LatencyModel, TpotModel, TtftModel
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package not in ("numpy", "scipy"):
        raise
    message = f"tilewise.latency needs {package}: pip install {package}"
    raise ModuleNotFoundError(message, name=error.name) from None

__all__ = [
    "Coefficient",
    "FitError",
    "LatencyModel",
    "TpotModel",
    "TtftModel",
    "fit_csv",
    "fit_tpot",
    "fit_ttft",
]
