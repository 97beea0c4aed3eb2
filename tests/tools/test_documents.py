"""The documents name files that exist: a map that is wrong is worse than none."""

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The operation that CONTRIBUTING.md walks through exists only there.
FROM_ROOT = re.compile(r"(src|kernels|python|tests|benchmarks|examples)/|build\.rs$")
IMAGINED = re.compile(r"(^|/)(test_)?scale\.")


def expanded(path):
    """a/{b,c}.rs -> a/b.rs, a/c.rs"""
    parts = [p.split(",") for p in re.split(r"[{}]", path)]
    return ["".join(choice) for choice in itertools.product(*parts)]


def named_files(document):
    """Paths from the root; under a heading that is a folder, also names within it."""
    files, folder = [], ""
    here = Path(document).parent
    for line in (ROOT / document).read_text().splitlines():
        if heading := re.match(r"#+ (`[\w./]+/`$)?", line):
            folder = (heading[1] or "").strip("`")
        quoted = re.findall(r"`([\w./{},*-]+)`", line)
        files += [f for q in quoted if FROM_ROOT.match(q) for f in expanded(q)]
        if folder and line.startswith("| `"):
            names = re.findall(r"`([\w./{},*-]+)`", line.split("|")[1])
            files += [folder + f for q in names if not FROM_ROOT.match(q) for f in expanded(q)]
        files += [str(here / link) for link in re.findall(r"\]\((?!http|#)([^)#]+)\)", line)]
    return [f for f in files if not IMAGINED.search(f)]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(document):
    named = named_files(document)
    assert len(named) > 10
    assert not [f for f in named if not (ROOT / f).exists()]


def test_the_map_in_the_readme_misses_no_file():
    named = named_files("README.md")
    files = [*ROOT.glob("src/**/*.rs"), *ROOT.glob("kernels/*.cu")]
    for path in (p.relative_to(ROOT) for p in files):
        if path.name in ("mod.rs", "lib.rs", "tests.rs", "host_cpp.rs") or "tests" in path.parts:
            continue  # tables of contents and tests
        assert any(
            path.as_posix() == f or (f.endswith("/") and path.as_posix().startswith(f)) for f in named
        ), path
