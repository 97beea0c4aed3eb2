"""Compiles the kernels of peers in several processes: a run then finds them in its peers' caches on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context

import torch

from . import peers
from .calls import Case

COMPILING = ("triton", "quack", "liger", "compile")


def prepare(
    chosen: Sequence[tuple[Case, tuple[str, ...]]], device: torch.device, jobs: int
) -> dict[str, int]:
    """Compiles what the wanted peers of each case launch; the number of cases of each peer that compiled."""
    # Of quack's own processes, in which it compiles the kernels among which it chooses.
    os.environ.setdefault("QUACK_COMPILE_WORKERS", str(jobs))
    calls = [
        (case, name, device)
        for case, wanted in chosen
        for name in wanted
        # quack's matmul times its kernels as soon as they are compiled, which needs a GPU without other work.
        if name in COMPILING and (name, case.op) != ("quack", "matmul")
    ]
    compiled: dict[str, int] = {}
    # Whatever a process dies of, the run compiles the rest.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin) as pool, suppress(BrokenProcessPool):
        for name in pool.map(_compile, calls):
            if name is not None:
                compiled[name] = compiled.get(name, 0) + 1
    return compiled


def _begin() -> None:
    from torch._inductor import config

    # A choice that was timed beside other processes is none to keep.
    config.autotune_local_cache = False
    config.compile_threads = 1


def _compile(work: tuple[Case, str, torch.device]) -> str | None:
    """Calls one peer once: its name, or None where it does not support the case or fails."""
    case, name, device = work
    try:
        candidate: Callable[[], object] | None = peers.candidates(case.build(device), (name,)).get(name)
        if candidate is None:
            return None
        candidate()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()  # for the other processes
    except Exception:
        return None
    return name
