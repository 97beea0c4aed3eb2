"""Compares the launches of a call, as the log has them, with those that tilewise.explain has announced."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import operations
import tilewise

LINE = re.compile(
    r"tilewise: (\w+) .+: (\w+) \((\w+)\.cu\): grid (\d+)x(\d+)x(\d+), block (\d+)x(\d+)x(\d+), "
    r"(\d+) bytes of shared memory, stream 0x[0-9a-f]+"
)
Launch = tuple[str, ...]

_log = tempfile.TemporaryFile()  # noqa: SIM115


def watch() -> None:
    """Needs TILEWISE_LOG=launch from the start of the process. Standard error is then for Python alone."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(_log.fileno(), 2)
    operations.watchers = (announced, compare)


def announced(op: str, args: tuple, kwargs: dict) -> list[Launch] | None:
    if op == "matmul_for_training":  # which explain does not know
        return None
    explanation = tilewise.explain(op, *args, **kwargs)
    assert (len(explanation.why) > 0) == (explanation.plan is not None), explanation
    assert all(reason.chosen != reason.over for reason in explanation.why), explanation
    _log.seek(0)
    _log.truncate()
    return [
        (
            op,
            plan.kernel,
            Path(plan.file).stem,
            *map(str, (*plan.grid, *plan.block, plan.dynamic_shared_bytes)),
        )
        for plan in explanation.launches
    ]


def compare(expected: list[Launch] | None) -> None:
    if expected is None:
        return
    _log.seek(0)
    launched = [LINE.fullmatch(line) for line in _log.read().decode().splitlines()]
    assert all(launched), "a line of the log that is none"
    found = [line.groups() for line in launched]
    assert found == expected, f"launched {found}, explained {expected}"
