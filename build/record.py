"""Writes kernels/resources.txt from a build for every GPU: what ptxas reported of the kernels, and a digest.

`make kernels` runs it. tests/tools/test_build.py compares the digest: CI compiles few kernels, and so fails
where kernels have changed that were not compiled for all. build/record.rs reads the file for the emulator.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tilewise
from tilewise.bench.record import KERNEL_SOURCES, digest

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "kernels/resources.txt"
HEAD = """\
# Written by `make kernels`: file, kernel, and of each target registers and bytes of static shared memory.
# nvcc {nvcc}
# digest {digest}
"""


def main() -> None:
    build = tilewise.build_info()
    complete = {f"sm_{name}" for file in (ROOT / "kernels").glob("*.cu") for name in targets(file)}
    if build["emulated"] or not complete <= set(build["targets"]):
        sys.exit(f"this build is for {', '.join(build['targets'])}, and not for all of {', '.join(complete)}")
    lines: dict[tuple[str, str], list[str]] = {}
    for kernel in build["kernels"]:
        resources = f"{kernel['target']}:{kernel['registers']}:{kernel['shared_bytes']}"
        lines.setdefault((kernel["file"], kernel["kernel"]), []).append(resources)
    head = HEAD.format(nvcc=build["nvcc"], digest=digest(ROOT, KERNEL_SOURCES))
    RECORD.write_text(head + "".join(f"{' '.join([*key, *lines[key]])}\n" for key in sorted(lines)))
    print(f"{RECORD.relative_to(ROOT)}: {len(lines)} kernels")


def targets(file: Path) -> list[str]:
    """Those of a kernel file that have machine code: `90a` for sm_90a."""
    line = next(line for line in file.read_text().splitlines() if line.startswith("// targets:"))
    return [name for name in line.split()[2:] if not name.startswith("ptx:")]


if __name__ == "__main__":
    main()
