"""`python -m tilewise.latency fit data.csv`: fits TPOT(t) and TTFT(s, t) to measurements in a CSV file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewise import _destinations

from . import FitError, fit_csv

COLUMNS = """\
The first line of the CSV file names its columns: t and tpot, or s, t and ttft, or all of them. A unit may
follow a time: tpot_ms, ttft_s. A cell of tpot or ttft may be empty.
"""


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        models = fit_csv(options.data, confidence=options.confidence)
        if options.plot:
            from .plot import save

            save(models, options.plot, options.title or options.data.name)
    except (FitError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("--plot needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([model.as_dict() for model in models], indent=1))
    else:
        print("\n\n".join(map(str, models)))
    return 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m tilewise.latency",
        description="Fits models of a language model's latency, TPOT(t) and TTFT(s, t), to measurements.",
    )
    fit = result.add_subparsers(required=True, metavar="fit").add_parser(
        "fit",
        help="fit the models to a CSV file",
        description="Fits TPOT(t) = k1 log(t) + b1 and TTFT(s, t) = k2 log(t) + k3 log(s) + b2.",
        epilog=COLUMNS,
    )
    fit.add_argument("data", type=Path, help="the CSV file")
    fit.add_argument(
        "--plot", type=_destinations.picture, metavar="FILE", help="draw the fits: .png, .svg or .pdf"
    )
    fit.add_argument("--title", help="of the picture, such as the model and the device (default: the file)")
    fit.add_argument("--confidence", type=float, default=0.95, help="of the intervals (default: 0.95)")
    fit.add_argument("--json", action="store_true", help="print plain data instead of text")
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
