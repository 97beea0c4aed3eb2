"""Records of a run: figures, the machine they were taken on, the digest of the sources they speak of."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from tilewise.info import collect

from . import report
from .figures import Run
from .options import OPERATIONS

# What decides speed on a GPU. A record is stale once the code in any of these has changed, tests excepted.
SOURCES = ("kernels/**/*.cu", "kernels/**/*.cuh", "src/cuda/**/*.rs", "build.rs")


class NoDigest(RuntimeError):
    """Why there is no telling which sources these are: no checkout around, or nothing to read code by."""


class NotARecord(ValueError):
    """A file that holds no run."""


def checkout() -> Path:
    """The source tree that holds the current directory, or this file."""
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            if (folder / "build.rs").is_file() and (folder / "kernels").is_dir():
                return folder
    raise NoDigest("no folder with build.rs and kernels/ here or above: run inside a checkout of tilewise")


def digest(root: Path | None = None) -> str:
    """sha256 over names and code of `SOURCES`, in the order of their names.

    Comments and layout do not count: heads of kernels say what was measured, and are written afterwards.
    """
    root = root or checkout()
    total = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in root.glob(pattern)}):
        name = path.relative_to(root)
        if "tests" not in name.with_suffix("").parts:
            total.update(f"{name.as_posix()}\0{''.join(_code(path))}\0".encode())
    return total.hexdigest()


def _code(path: Path) -> Iterator[str]:
    try:
        from pygments.lexers import CudaLexer, RustLexer
        from pygments.token import Comment, String
    except ImportError:
        raise NoDigest("a digest of the sources needs pygments: pip install 'tilewise[bench]'") from None

    lexer = RustLexer() if path.suffix == ".rs" else CudaLexer()
    for kind, text in lexer.get_tokens(path.read_text().replace("\\\n", "")):
        directive = kind in Comment.Preproc or kind in Comment.PreprocFile
        said = kind in String.Doc or (kind in Comment and not directive)
        # build.rs reads this one.
        if not said or text.startswith("// targets:"):
            yield "".join(text.split())


def is_current(record: Path, root: Path | None = None) -> bool:
    """Whether the record was made from the sources as they are now."""
    return bool(_read(record, "digest")["digest"] == digest(root))


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
    """Everything about a run but its figures."""
    facts: dict[str, Any] = {
        "date": day or date.today().isoformat(),
        "device": device,
        "command": command,
    }
    try:
        facts["digest"] = digest()
    except NoDigest:
        facts["digest"] = None
    if tests:
        facts["tests"] = tests
    environ = collect()
    # A record is published: it says nothing of where things lie on the machine.
    environ.pop("environment")
    if isinstance(environ["tilewise"], dict):
        environ["tilewise"].pop("location", None)
    if isinstance(environ["libraries"], list):
        environ["libraries"] = [Path(library).name for library in environ["libraries"]]
    return facts | {"environment": environ}


def write(folder: Path, run: Run) -> Path:
    """Writes `{date}-{device}-{operations}.json` and a Markdown summary beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    operations = sorted(run.operations)
    what = "all" if operations == sorted(OPERATIONS) else "-".join(operations)
    device = re.sub(r"[^a-z0-9]+", "-", run.facts["device"].lower()).strip("-")
    path = folder / f"{run.facts['date']}-{device}-{what}.json"
    path.write_text(json.dumps(run.as_json(), indent=1) + "\n")
    path.with_suffix(".md").write_text(report.summary(run))
    return path
