"""Documents and comments name files that exist, heads are short, and the map of the source misses no file."""

import ast
import functools
import io
import itertools
import posixpath
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

if not (ROOT / ".git").exists():
    pytest.skip("no checkout", allow_module_level=True)

MAP = "docs/architecture.md"
MOST_LINES = 15
# What a path or a file's name is made of, `wgmma/{cost,params}.rs` and `softmax_transposed*.cu` included.
NAME = r"[\w.{},*/-]*"
FOLDERS = r"(?:src|kernels|python|tests|benchmarks|examples|docs|\.ci)/"
NAMED = re.compile(
    rf"(?<![\w./}}{{<>*:-])({FOLDERS}{NAME}|{NAME}[\w}}*]\.(?:rs|cuh?|py|md|ipynb))(?![\w<(-])"
)
# Files that a reader is to make, by CONTRIBUTING.md and by the examples; and names with a gap in them.
IMAGINED = re.compile(r"(^|/)((test_)?scale|FILE)\.\w+$|^train\.py$|^\.\.\./|\{\w+\}")
# `THREADS in softmax_column_tile.cu`, `RegisterTileParams of kernels/softmax_register_tile.cu`.
MEMBER = re.compile(rf"(`\w+`|\b[A-Z]\w*[A-Z_]\w*)(?: in| of|,) `?({NAME}\.(?:rs|cuh?|py))\b")


def tracked():
    """Every file of the repository, new ones included."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [name for name in names if name and (ROOT / name).exists()]


FILES = tracked()
PATHS = {*FILES, *(str(parent) for name in FILES for parent in Path(name).parents)}


def expanded(name):
    """a/{b,c}.rs -> a/b.rs, a/c.rs"""
    parts = [part.split(",") for part in re.split(r"[{}]", name)]
    return ["".join(choice) for choice in itertools.product(*parts)]


def pattern(name):
    """A folder stands for the files in it; * for a part of a name; **/ for any folders or none."""
    text = re.escape(name).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    return re.compile(text + "[^/]+" if name.endswith("/") else text)


@functools.cache  # several tests read all of it
def prose(name, text):
    """Of a document everything, of a source its comments and docstrings."""
    match Path(name).suffix:
        case ".md":
            return text
        case ".py" | ".pyi":
            comments = [
                t.string
                for t in tokenize.generate_tokens(io.StringIO(text).readline)
                if t.type == tokenize.COMMENT
            ]
            nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            strings = [
                ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, nodes)
            ]
            return "\n".join(comments + strings)
        case ".rs" | ".cu" | ".cuh" | ".h" | ".cpp":
            return joined(re.findall(r"(?:^|\s)//[/!]?(.*)$", text, re.MULTILINE))
        case _:
            return joined(re.findall(r"(?:^|\s)#+(.*)$", text, re.MULTILINE))


def joined(lines):
    return "\n".join(line.strip() for line in lines)


def exists(name, beside):
    """From the root, from the folder of the file that names it, or as the end of a path."""
    found = pattern(name.rstrip("/"))
    here = Path(beside).parent
    near = (posixpath.normpath(folder / name) for folder in (here, *here.parents))
    return (
        any(path in PATHS for path in near)
        or any(found.fullmatch(path) for path in PATHS)
        or any(re.search(rf"(?:^|/){found.pattern}$", path) for path in FILES)
    )


def missing(name, text):
    """Files that a file names and that are not there."""
    words = re.sub(r"https?://\S+", "", prose(name, text))
    named = {found.rstrip(".,-") for found in NAMED.findall(words)}
    real = [one for found in named if not IMAGINED.search(found) for one in expanded(found)]
    return sorted(one for one in real if not exists(one, name))


def strayed(name, text):
    """`NAME in file` whose file has no such name."""
    found = []
    for member, file in MEMBER.findall(" ".join(prose(name, text).split())):
        places = [path for one in expanded(file) for path in FILES if f"/{path}".endswith(f"/{one}")]
        member = member.strip("`")
        if places and not any(re.search(rf"\b{member}\b", (ROOT / path).read_text()) for path in places):
            found.append(f"{member} in {file}")
    return found


SKIPPED = (
    "docs/performance",
    "LICENSE",
    "Cargo.lock",
    "tests/tools/test_documents.py",
    "benchmarks/results/h",
    "benchmarks/sweeps/",
)
READ = [
    name
    for name in FILES
    if not name.startswith(SKIPPED) and not name.endswith((".png", ".ipynb", ".css", ".txt", ".typed"))
]


# Phrases of earlier days, for which the field has words.
RETIRED = re.compile(
    r"\btime over (?:tilewise's|ours|this kernel's)|\bis an input or overlaps none|\bdone first \(clocks"
    r"|\bwhat the model leaves over|\bforward derivatives\b|\bwherever it has one to ask"
)


def test_a_reader_meets_the_words_of_the_field():
    texts = {name: " ".join(prose(name, (ROOT / name).read_text()).split()) for name in READ}
    found = {name: RETIRED.findall(text) for name, text in texts.items()}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def test_every_file_that_is_named_exists():
    assert len(READ) > 300
    texts = {name: (ROOT / name).read_text() for name in READ}
    assert not [(name, gone) for name, text in texts.items() for gone in missing(name, text)]
    assert not [(name, gone) for name, text in texts.items() for gone in strayed(name, text)]


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("// See softmax_fast.cu.", ["softmax_fast.cu"]),
        ("// As src/cuda/plan/nothing.rs has it (src/cuda/driver.rs).", ["src/cuda/plan/nothing.rs"]),
        ("/// Mirrored in plan/{index,nothing}.rs, and in kernels/add*.cu.", ["plan/nothing.rs"]),
        ("let name = 1; // docs/measurements/nothing.md", ["docs/measurements/nothing.md"]),
        ('include!("nothing.rs");', []),
    ],
)
def test_a_file_that_is_gone_is_noticed(text, gone):
    assert missing("src/lib.rs", text) == gone


def test_a_constant_that_is_gone_is_noticed():
    text = "// NO_THREADS in softmax_short.cu, THREADS in softmax_short.cu, `NoParams` of common/exchange.cuh"
    assert strayed("src/lib.rs", text) == [
        "NO_THREADS in softmax_short.cu",
        "NoParams in common/exchange.cuh",
    ]


def test_every_directive_says_where_its_text_stands():
    """A page read as a file shows a link where the site shows the text."""
    directive = re.compile(r"^<!-- (section|file|head|errors|variants|kernels|measurements)\b", re.MULTILINE)
    linked = re.compile(r"^In the repository: \[.+?\]\((\S+?)(?:#(\S+))?\).*\n<!-- ", re.MULTILINE)
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text()
        links = linked.findall(text)
        assert len(links) == len(directive.findall(text)), page
        for target, anchor in links:
            file = page.parent / target
            assert file.exists(), (page, target)
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if anchor else []
            assert not anchor or anchor in {h.lower().replace(" ", "-") for h in headings}, (page, anchor)


def head(text):
    """The comment that a file begins with."""
    return list(itertools.takewhile(lambda line: line.startswith(("//", "#!")), text.splitlines()))


@pytest.mark.parametrize("suffix", [".cu", ".cuh", ".rs"])
def test_every_source_has_a_head_that_is_read_at_one_sight(suffix):
    sources = [
        name for name in FILES if name.endswith(suffix) and name.startswith(("src/", "kernels/", "build"))
    ]
    lengths = {name: len(head((ROOT / name).read_text())) for name in sources}
    assert len(lengths) > 20
    assert not {name: lines for name, lines in lengths.items() if not 1 <= lines <= MOST_LINES}


def test_every_kernel_names_its_page_of_measurements_and_every_page_has_a_kernel():
    kernels = [Path(name).stem for name in FILES if re.fullmatch(r"kernels/\w+\.cu", name)]
    pages = {Path(name).stem for name in FILES if name.startswith("docs/measurements/")}
    others = {"index", "build", "host", "decoder_block", "cpu", "cpu_matmul", "cpu_memory_bound"}
    assert pages - others == {*kernels}
    for kernel in kernels:
        assert head((ROOT / f"kernels/{kernel}.cu").read_text())[-1].endswith(
            f"docs/measurements/{kernel}.md"
        )


def rows():
    """The map's lines, each as the names of its first column."""
    text = (ROOT / MAP).read_text().split("## Map\n")[1].split("\n## ")[0]
    lines = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    return [[one for name in re.findall(r"`([^`]+)`", line) for one in expanded(name)] for line in lines]


def uncovered(names):
    patterns = [pattern(name) for name in names]
    return {path for path in FILES if not any(found.fullmatch(path) for found in patterns)}


def test_the_map_misses_no_file_and_names_none_that_is_not_there():
    names = [name for row in rows() for name in row]
    assert not uncovered(names)
    assert not [name for name in names if not any(pattern(name).fullmatch(path) for path in FILES)]
    # `src/**/mod.rs` is a kind of file; `src/**` or `src/**/*.rs` would be all of them.
    assert not [name for name in names if "**" in name and "*" in name.rpartition("**/")[2]]


def test_no_line_of_the_map_can_go():
    every = rows()
    assert len(every) > 50
    for i in range(len(every)):
        assert uncovered([name for row in every[:i] + every[i + 1 :] for name in row]), every[i]
