"""A run of the benchmark as a GPU would leave it, without a GPU."""

from tilewise.bench import report
from tilewise.bench.record import Ceilings, Measurement, Run

FACTS = {
    "date": "2026-01-02",
    "device": "NVIDIA H200",
    "command": "python -m tilewise.bench all",
    "digest": None,
    "environment": {
        "tilewise": {"version": "0.1.0"},
        "packages": {"torch": "2.11.0"},
        "python": "3.12.3",
        "cpu": "a CPU",
        "driver": {},
    },
}
PARTS = {report.TINY: 3e-3, report.TINY_OUT: 2.5e-3, report.EMPTY: 2e-3, report.EMPTY_OUT: 1.5e-3}


def measurement(op, case, dtype="bfloat16", bytes=0, flops=0, spread=0.01, **milliseconds):
    return Measurement(op, case, dtype, bytes, flops, milliseconds, {"tilewise": spread})


def whole_run(slowdown=1.0):
    """A run with something of everything, as a GPU would leave it."""
    found = []
    for power in range(20, 30, 2):
        ms = (1 << power) / 4e9
        found.append(
            measurement(
                "add", f"contiguous 2^{power}", bytes=1 << power, tilewise=ms * slowdown, torch=ms, copy=ms
            )
        )
        n = 1 << (power // 2)
        found.append(
            measurement("softmax", f"32768x{n}", bytes=n << 17, tilewise=n / 3e4, torch=n / 2e4, copy=n / 4e4)
        )
        for dtype in ("bfloat16", "float32"):
            found.append(
                measurement(
                    "matmul", f"{n}^3 nn", dtype, 6 * n * n, 2 * n**3, tilewise=n**3 / 2e11, torch=n**3 / 3e11
                )
            )
    found.append(
        measurement("matmul", "1000^3 nn", bytes=6000000, flops=2 * 10**9, tilewise=0.02, triton=0.01)
    )
    found.append(measurement("matmul", "4096^3 tt", bytes=1, flops=1))
    found[-1].errors = {"tilewise": "out of luck"}
    for op in ("add", "matmul"):
        for name, ms in PARTS.items():
            found.append(
                measurement("overhead", f"{op}, {name}", "float32", tilewise=ms, torch=ms / 2, triton=0.02)
            )
    run = Run(dict(FACTS), Ceilings(4.2e12, {"bfloat16": 5e14, "float32": 5e14}), found)
    for op in run.operations:
        run.settle(op)
    return run
