"""A run's measurements and the file that keeps them, with machine, versions and digest. Needs no torch."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from tilewise.info import collect

from .options import OPERATIONS, TF32

# A time of which more than this share may be chance says nothing beside another: its ratios are left out.
MOST_NOISE = 0.25
# Operands of fewer bytes stay in a CPU's caches, whose rate a large copy does not bound.
CACHED = 64 << 20
# The copy is a limit, not a peer: it moves as many bytes and computes nothing.
COPY = "copy"
OVERHEAD = "overhead"
# The files that decide speed on a GPU and on a CPU: a record is stale when their code changes (tests aside).
SOURCES = ("kernels/**/*.cu", "kernels/**/*.cuh", "src/cuda/**/*.rs", "build.rs", "build/*.rs")
CPU_SOURCES = ("src/cpu/**/*.rs",)
# What is compiled to machine code of GPUs, and how.
KERNEL_SOURCES = ("kernels/**/*.cu", "kernels/**/*.cuh", "build.rs", "build/*.rs")


def arithmetic(case: str, dtype: str) -> str:
    """What a matmul is computed in, which bounds its rate: its dtype or TF32."""
    return TF32 if case.endswith(f" {TF32}") else dtype


@dataclass
class Ceilings:
    """The best rates of the device in this run: of a large copy, of torch's matmuls by dtype and in TF32."""

    # 0: its time was noise.
    copy_bytes_per_second: float
    flops_per_second: dict[str, float]


@dataclass
class Measurement:
    op: str
    case: str
    dtype: str
    bytes: int
    flops: int
    milliseconds: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    # Why a candidate has no time. An error of tilewise fails the run.
    errors: dict[str, str] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    best_peer: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.case, self.dtype

    @property
    def failed(self) -> bool:
        return "tilewise" not in self.milliseconds

    @property
    def is_noise(self) -> bool:
        return self.noise.get("tilewise", 0.0) > MOST_NOISE

    @property
    def peers(self) -> list[str]:
        return [name for name in self.milliseconds if name not in ("tilewise", COPY)]

    def rate(self, who: str = "tilewise") -> float:
        """Bytes per second; of a matmul, flops per second."""
        return (self.flops or self.bytes) / self.milliseconds[who] * 1e3

    def compare(self, ceilings: Ceilings, *, cpu: bool = False) -> None:
        """Fills `ratios`: times over tilewise's (above 1: tilewise is faster), fractions of ceilings.

        Without those that are noise: of a time of which too much may be chance.
        """
        self.ratios, self.best_peer = {}, None
        if self.failed or self.is_noise:
            return
        ours = self.milliseconds["tilewise"]
        sure = {name: ms for name, ms in self.milliseconds.items() if self.noise.get(name, 0.0) <= MOST_NOISE}
        self.ratios = {name: ms / ours for name, ms in sure.items() if name != "tilewise"}
        self.best_peer = min((p for p in self.peers if p in sure), key=sure.__getitem__, default=None)
        if self.op == OVERHEAD or (cpu and not self.flops and self.bytes < CACHED):
            return
        if ceilings.copy_bytes_per_second:
            self.ratios["of copy ceiling"] = self.bytes / ours * 1e3 / ceilings.copy_bytes_per_second
        if self.flops and (peak := ceilings.flops_per_second.get(arithmetic(self.case, self.dtype))):
            self.ratios["of matmul ceiling"] = self.rate() / peak


@dataclass
class Run:
    # date, device, command, digest, environment, and further keys of a record
    facts: dict[str, Any]
    ceilings: Ceilings
    measurements: list[Measurement]

    @property
    def device(self) -> str:
        """The device's name; a CPU's model, instruction set and threads."""
        name = str(self.facts["device"])
        if name != "CPU":
            return name
        model, cpu = str(self.facts["environment"]["cpu"]), self.facts.get("cpu")
        return f"{model}: {cpu['instructions']}, {cpu['threads']} threads" if cpu else model

    def settle(self, op: str) -> None:
        """Raises the matmul ceilings to what torch reached in the cases of `op`, and fills its ratios."""
        peaks = self.ceilings.flops_per_second
        for m in self.of(op):
            if m.flops and m.noise.get("torch", 0.0) <= MOST_NOISE and "torch" in m.milliseconds:
                name = arithmetic(m.case, m.dtype)
                peaks[name] = max(peaks.get(name, 0.0), m.rate("torch"))
        for m in self.of(op):
            m.compare(self.ceilings, cpu=self.facts["device"] == "CPU")

    @property
    def operations(self) -> list[str]:
        return list(dict.fromkeys(m.op for m in self.measurements))

    def of(self, op: str) -> list[Measurement]:
        return [m for m in self.measurements if m.op == op]

    def as_json(self) -> dict[str, Any]:
        return self.facts | {
            "ceilings": asdict(self.ceilings),
            "cases": [asdict(m) for m in self.measurements],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        facts = {name: value for name, value in data.items() if name not in ("ceilings", "cases")}
        measurements = [Measurement(**case) for case in data["cases"]]
        run = cls(facts, Ceilings(**data["ceilings"]), measurements)
        for op in run.operations:
            run.settle(op)
        return run


# --- files


class NoDigest(RuntimeError):
    """The sources cannot be identified: no checkout is around, or pygments is missing."""


class NotARecord(ValueError):
    """A file that holds no run."""


def load(record: Path) -> Run:
    """The run that `--json` or `--record` wrote."""
    data = _read(record, "cases", "ceilings", "date", "device", "environment")
    try:
        return Run.from_json(data)
    except TypeError as error:
        raise NotARecord(f"{record} is not a record of the benchmark: {error}") from error


def _read(record: Path, *needed: str) -> dict[str, Any]:
    try:
        data = json.loads(record.read_text())
        for name in needed:
            data[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotARecord(f"{record} is not a record of the benchmark: {error}") from error
    return dict(data)


def describe(command: str, device: str, day: str | None, tests: str | None) -> dict[str, Any]:
    """The facts of a run that are not measured."""
    facts: dict[str, Any] = {
        "date": day or date.today().isoformat(),
        "device": device,
        "command": command,
    }
    try:
        facts["digest"] = digest(sources=_sources(device))
    except NoDigest:
        facts["digest"] = None
    if tests:
        facts["tests"] = tests
    environ = collect()
    # A record is published: it tells no path of the machine.
    environ.pop("environment")
    if isinstance(environ["tilewise"], dict):
        environ["tilewise"].pop("location", None)
    if isinstance(environ["libraries"], list):
        environ["libraries"] = [Path(library).name for library in environ["libraries"]]
    return facts | {"environment": environ}


def save(run: Run, path: Path) -> None:
    path.write_text(json.dumps(run.as_json(), indent=1) + "\n")


def keep(run: Run, folder: Path, summary: str) -> Path:
    """Writes `{date}-{device}-{operations}.json`, and the summary in Markdown beside it."""
    cpu = run.facts.get("cpu")
    folder.mkdir(parents=True, exist_ok=True)
    operations = sorted(run.operations)
    what = "all" if operations == sorted(OPERATIONS) else "-".join(operations)
    name = f"cpu {cpu['instructions']} {cpu['threads']}" if cpu else run.facts["device"]
    device = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    path = folder / f"{run.facts['date']}-{device}-{what}.json"
    save(run, path)
    path.with_suffix(".md").write_text(summary)
    return path


# --- the sources of a record


def checkout() -> Path:
    """The source tree that holds the current directory, or this file."""
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            if (folder / "build.rs").is_file() and (folder / "kernels").is_dir():
                return folder
    raise NoDigest("no folder with build.rs and kernels/ here or above: run inside a checkout of tilewise")


def _sources(device: str) -> tuple[str, ...]:
    return CPU_SOURCES if device == "CPU" else SOURCES


def digest(root: Path | None = None, sources: tuple[str, ...] = SOURCES) -> str:
    """sha256 over names and code of `sources`, in the order of their names.

    Comments and layout do not count: they change no machine code.
    """
    if importlib.util.find_spec("pygments") is None:
        raise NoDigest("a digest of the sources needs pygments: pip install pygments")
    root = root or checkout()
    total = hashlib.sha256()
    for path in sorted({path for pattern in sources for path in root.glob(pattern)}):
        name = path.relative_to(root)
        if "tests" not in name.with_suffix("").parts:
            total.update(f"{name.as_posix()}\0{_code(path.suffix, path.read_text())}\0".encode())
    return total.hexdigest()


@functools.cache  # for all files it takes seconds
def _code(suffix: str, source: str) -> str:
    from pygments.lexers import CudaLexer, RustLexer
    from pygments.token import Comment, String

    lexer = RustLexer() if suffix == ".rs" else CudaLexer()
    code = []
    for kind, text in lexer.get_tokens(source.replace("\\\n", "")):
        directive = kind in Comment.Preproc or kind in Comment.PreprocFile
        comment = kind in String.Doc or (kind in Comment and not directive)
        # build.rs reads this comment.
        if not comment or text.startswith("// targets:"):
            code.append("".join(text.split()))
    return "".join(code)


def is_current(record: Path, root: Path | None = None) -> bool:
    """Whether the record was made from the sources as they are now."""
    data = _read(record, "digest")
    return bool(data["digest"] == digest(root, _sources(data.get("device", ""))))
