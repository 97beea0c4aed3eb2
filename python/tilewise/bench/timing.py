"""Clocks, and turns: candidates are timed in turns, so that drift and heat affect all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from .record import MOST_NOISE

Thunk = Callable[[], Any]


class Clock(Protocol):
    """Times single calls on one device."""

    # The share of the last sample for which threads waited for a core that others had.
    lost: float

    def warm_up(self, call: Thunk) -> float:
        """Runs `call` a few times and returns about how many milliseconds one takes."""

    def sample(self, call: Thunk, repetitions: int) -> list[float]:
        """Milliseconds of each of `repetitions` calls."""


class CudaClock:
    """Device time between two events around each call; L2 holds nothing of the inputs."""

    lost = 0.0

    def __init__(self, device: torch.device) -> None:
        self.device = device
        l2_bytes: int = torch.cuda.get_device_properties(device).L2_cache_size
        self.flush = torch.zeros(max(4 * l2_bytes, 128 << 20) // 4, dtype=torch.float32, device=device)
        self.sum = torch.zeros((), device=device)

    def warm_up(self, call: Thunk) -> float:
        for _ in range(3):
            call()
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for _ in range(3):
            call()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - start) * 1e3 / 3

    def sample(self, call: Thunk, repetitions: int) -> list[float]:
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(repetitions)
        ]
        # The device spins while the host queues the whole batch; without that a short kernel's events would
        # measure how quickly Python comes back. 200 us of host time a call is ample, at about 2 GHz.
        torch.cuda._sleep(repetitions * 400_000)
        for i, (start, stop) in enumerate(events):
            # The flush reads: written lines would be written back during the call, at its expense
            # (docs/measuring.md).
            torch.sum(self.flush, 0, out=self.sum)
            # Every second kernel of a process takes 0.4 us longer from event to event (H200; torch's and
            # tilewise's alike). One more kernel every other time gives each candidate half of the slow ones.
            if i % 2:
                self.flush[:1].zero_()
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize(self.device)
        return [start.elapsed_time(stop) for start, stop in events]


def waited() -> float:
    """Seconds for which this process's threads have waited for a core, as far as the system says."""
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        # A thread may end meanwhile.
        with suppress(OSError):
            total += int(task.read_text().split()[1])
    return total / 1e9


class CpuClock:
    """Wall time of each call; caches are left as the call before left them."""

    lost = 0.0

    def warm_up(self, call: Thunk) -> float:
        call()
        return min(self.sample(call, 2))

    def sample(self, call: Thunk, repetitions: int) -> list[float]:
        # The worker threads of the candidate before spin for some milliseconds before they sleep.
        time.sleep(0.02)
        call()
        times = []
        before = waited()
        for _ in range(repetitions):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        self.lost = min(1.0, (waited() - before) * 1e3 / sum(times))
        return times


class HostClock:
    """Host time of a call: the mean of a batch without a wait in between."""

    lost = 0.0
    # Fewer than a stream queues before a launch waits for the device.
    BATCH = 200

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def warm_up(self, call: Thunk) -> float:
        call()
        return self._batch(call)

    def sample(self, call: Thunk, repetitions: int) -> list[float]:
        before = waited()
        batches = [self._batch(call) for _ in range(repetitions)]
        self.lost = min(1.0, (waited() - before) * 1e3 / sum(batches))
        return [batch / self.BATCH for batch in batches]

    def _batch(self, call: Thunk) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for _ in range(self.BATCH):
            call()
        return (time.perf_counter() - start) * 1e3


def clock_for(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else CpuClock()


@dataclass
class Timings:
    """Milliseconds per candidate, and what stopped the candidates that have none."""

    median: dict[str, float] = field(default_factory=dict)
    # Half the samples lie within this share of the median.
    spread: dict[str, float] = field(default_factory=dict)
    # The share of the median that chance may have added: by the fastest sample, between turns, and by waits
    # for a core.
    noise: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def most_noise(self) -> float:
        return max(self.noise.values(), default=0.0)


def interleave(
    candidates: Mapping[str, Thunk], clock: Clock, *, rounds: int, budget_ms: float, attempts: int = 1
) -> Timings:
    """Medians over `rounds` turns of each candidate, each turn about `budget_ms` long.

    Where one is noise, all are timed again, up to `attempts` times. The attempt of the least noise counts.
    """
    result = timed_once(candidates, clock, rounds, budget_ms)
    errors = result.errors
    sound = {name: candidates[name] for name in result.median}
    for _ in range(attempts - 1):
        if result.most_noise <= MOST_NOISE:
            break
        again = timed_once(sound, clock, rounds, budget_ms)
        if not again.errors:
            result = min(result, again, key=lambda timings: timings.most_noise)
    result.errors = errors
    return result


def timed_once(candidates: Mapping[str, Thunk], clock: Clock, rounds: int, budget_ms: float) -> Timings:
    result = Timings()
    repetitions: dict[str, int] = {}
    for name, call in candidates.items():
        try:
            estimate = clock.warm_up(call)
        except Exception as error:
            result.errors[name] = one_line(error)
        else:
            # An even number: CudaClock.sample treats every second call in another way.
            repetitions[name] = max(4, min(50, int(budget_ms / max(estimate, 1e-3)) // 2 * 2))
    turns: dict[str, list[list[float]]] = {name: [] for name in repetitions}
    lost = dict.fromkeys(repetitions, 0.0)
    for _ in range(rounds):
        for name in repetitions:
            turns[name].append(clock.sample(candidates[name], repetitions[name]))
            lost[name] += clock.lost / rounds
    for name, blocks in turns.items():
        times = [time for block in blocks for time in block]
        median = statistics.median(times)
        result.median[name] = median
        if median:
            result.spread[name] = statistics.median(abs(t - median) for t in times) / median
            of_turns = [statistics.median(block) for block in blocks]
            by_chance = max(median - min(times), max(of_turns) - min(of_turns)) / median
            result.noise[name] = max(by_chance, lost[name])
    return result


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]
