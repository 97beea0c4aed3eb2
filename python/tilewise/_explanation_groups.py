"""The tiles of a matmul, and what can be said of a grouped_matmul's without waiting for a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Groups:
    """The tiles of a grouped_matmul: bounds, where only a GPU knows where its groups end."""

    least_tiles: int
    most_tiles: int
    """Whatever the offsets say."""
    tiles: int | None
    """Where the offsets are on the CPU."""
    waves: float
    """Rounds of tiles of as many blocks as run at once: of `tiles`, or else of `most_tiles`."""
    largest_group: int | None
    """Rows, or k, of the largest group over those of the mean group, in percent."""


def groups_of(facts: Mapping[str, Any], offsets: Any) -> dict[str, Any]:
    """The fields of Groups, of what the core has said of a call."""
    problem, plan = facts["problem"], facts["plan"]
    m, columns, groups = problem["m"], -(-problem["n"] // plan["tile_n"]), problem["groups"]
    by_rows = problem["cut"] == "rows"
    total = m if by_rows else problem["k"]
    each = -(-m // plan["tile_m"])
    # Of rows there is one group more: those of no group.
    least, most = (each, m // plan["tile_m"] + min(m, groups + 1)) if by_rows else (each * groups,) * 2
    sizes = sizes_of(offsets, total)
    tiles = None
    if sizes is not None and by_rows:
        tiles = sum(-(-size // plan["tile_m"]) for size in (*sizes, total - sum(sizes)))
    elif sizes is not None:
        tiles = most
    largest = max(sizes) * len(sizes) * 100 // sum(sizes) if sizes and sum(sizes) else None
    occupancy, device = facts.get("occupancy"), facts["device"]
    at_once = device["multiprocessors"] * (occupancy["blocks_per_multiprocessor"] if occupancy else 1)
    return {
        "least_tiles": least * columns,
        "most_tiles": most * columns,
        "tiles": None if tiles is None else tiles * columns,
        "waves": (most if tiles is None else tiles) * columns / at_once,
        "largest_group": largest,
    }


def rounds_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The tiles of a matmul whose blocks each compute several, and how many rounds they take."""
    plan = facts["plan"]
    tiles = plan["tiles_m"] * plan["tiles_n"] * facts["problem"]["batch"] * plan.get("splits", 1)
    blocks = math.prod(plan["grid"])
    if tiles <= blocks:
        return {}
    rounds = -(-tiles // blocks)
    return {"tiles": tiles, "waves": rounds, "last_wave": tiles / blocks - (rounds - 1)}


def sizes_of(offsets: Any, total: int) -> list[int] | None:
    """Of each group, if the host may read where they end."""
    device = getattr(getattr(offsets, "device", "cpu"), "type", "cpu")
    if offsets is None or device != "cpu" or not hasattr(offsets, "tolist"):
        return None
    ends = [0]
    for end in offsets.tolist():
        ends.append(min(max(end, ends[-1]), total))
    return [end - begin for begin, end in pairwise(ends)]
