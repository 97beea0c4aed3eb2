"""Fits the model that chooses tiles and splits of matmul_wgmma to the times of benchmarks/sweep_matmul.py.

    python benchmarks/fit_matmul.py benchmarks/sweeps/h200.json

Prints the constants for src/cuda/plan/matmul/wgmma/cost.rs, and what the plans that the model prefers cost
beside the fastest, with the constants of the build and with the fitted ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from tilewise import _core

# m, n, k, tile, k splits, blocks that load for each other, whether the splits are a cluster; and whether
# rows of a are off the lines of caches, rows of b are, b is contiguous along n.
Plan = tuple[int, int, int, str, int, str, bool, tuple[bool, bool, bool]]
Constants = dict[str, float]


@dataclass(frozen=True)
class Sweep:
    """Measured plans: `plans[i]` took `microseconds[i]` and belongs to the problem `problems[i]`."""

    plans: list[Plan]
    microseconds: np.ndarray
    problems: np.ndarray

    @classmethod
    def read(cls, record: dict[str, Any]) -> Sweep:
        """Shapes whose operands may have been copied first are left out: that time is none of the plan's."""
        plans, microseconds, problems = [], [], []
        for problem, row in enumerate(record["rows"]):
            m, n, k = row["shape"]
            if any(size % 8 for size in (m, n, k)):
                continue
            rows = (k if row["layout"][0] == "n" else m, n if row["layout"][1] == "n" else k)
            lines = (rows[0] % 64 != 0, rows[1] % 64 != 0, row["layout"][1] == "n")
            for name, time in row["us"].items():
                tile, *settings = name.split(" ")
                # Without settings: tiles of the transposed result, which the model does not know.
                if "x" in tile and settings:
                    setting = dict(zip(settings[::2], settings[1::2], strict=True))
                    splits, cluster_splitk = int(setting["splits"]), setting["cluster"] == "None"
                    cluster = "1x1" if cluster_splitk else setting["cluster"]
                    plans.append((m, n, k, tile, splits, cluster, cluster_splitk, lines))
                    microseconds.append(time)
                    problems.append(problem)
        return cls(plans, np.array(microseconds), np.array(problems))

    def regrets(self, constants: Constants) -> dict[Plan, float]:
        """For the plan that the model prefers for each problem: its time beside that of the fastest."""
        clocks = np.array(_core.wgmma_clocks(self.plans, constants))
        regrets = {}
        for problem in np.unique(self.problems):
            own = np.flatnonzero(self.problems == problem)
            preferred = own[clocks[own].argmin()]
            regrets[self.plans[preferred]] = self.microseconds[preferred] / self.microseconds[own].min()
        return regrets


# What an H200 keeps up under this load, in clocks of a microsecond.
CLOCK = 1755.0


def fit(sweep: Sweep) -> Constants:
    """Least squares of logarithms: all sizes count alike, and slow plans, which nobody chooses, less."""
    start = _core.wgmma_model()
    names = list(start)
    fastest = {p: sweep.microseconds[sweep.problems == p].min() for p in np.unique(sweep.problems)}
    weights = (np.array([fastest[p] for p in sweep.problems]) / sweep.microseconds) ** 4

    def constants(logarithms: np.ndarray) -> Constants:
        return dict(zip(names, np.exp(logarithms).tolist(), strict=True))

    def residuals(x: np.ndarray) -> np.ndarray:
        clocks = np.array(_core.wgmma_clocks(sweep.plans, constants(x)))
        distances: np.ndarray = weights * (np.log(clocks) - np.log(CLOCK * sweep.microseconds))
        return distances

    guess = np.log([*start.values()])
    # The rate of a tile whose loads take longer than its products is anybody's guess.
    reach = np.log([1.25 if "x" in name else 3.0 for name in names])
    bounds = (guess - reach, guess + reach)
    return constants(least_squares(residuals, guess, bounds=bounds, loss="soft_l1", f_scale=0.05).x)


def mean_and_worst(regrets: dict[Plan, float]) -> tuple[float, float]:
    values = np.array(list(regrets.values()))
    return float(np.exp(np.log(values).mean())), float(values.max())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path, help="a file that sweep_matmul.py wrote")
    sweep = Sweep.read(json.loads(parser.parse_args().sweep.read_text()))
    fitted = fit(sweep)
    for name, before in _core.wgmma_model().items():
        print(f"{name:>14}  {before:10.4g} -> {fitted[name]:.4g}")
    for title, constants in (("as built", {}), ("fitted", fitted)):
        regrets = sweep.regrets(constants)
        for (m, n, k, tile, splits, cluster, *_), regret in regrets.items():
            if regret > 1.02:
                how = f"{tile} by {cluster} in {splits} splits"
                print(f"{title}: {m}x{n}x{k} {how} takes {regret:.3f} of the fastest")
        print(
            "{}: {:.4f} of the fastest in the mean, {:.3f} at worst".format(title, *mean_and_worst(regrets))
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
