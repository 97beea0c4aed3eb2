"""Writes docs/performance, its pictures, and the figures of README and notebooks from benchmarks/results.

python benchmarks/pages.py            write them
python benchmarks/pages.py --check    write nothing; name what is out of date, and exit with 1 if anything is
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from tilewise.bench import charts, kinds, plot, record, report
from tilewise.bench.record import COPY, OVERHEAD, Measurement, Run

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, IMAGES = Path("benchmarks/results"), Path("docs/performance.md"), Path("docs/images")
# A page for each record.
DEVICES = Path("docs/performance")
NOTEBOOKS = Path("examples/notebooks")
BEGIN, END = "<!-- figures: written by benchmarks/pages.py -->", "<!-- end of figures -->"
INTRODUCTION = """\
# Performance

Each device has a page of its own, written from its record in `benchmarks/results`. A record has every time,
the machine, the versions, and the command that repeats the run.

{devices}

Every result was compared with torch in float64 before it was timed. tilewise and its peers were timed in
turns in one run. Times are medians. On a GPU they are device times between two events, with the L2 cache
flushed before each call; on a CPU they are wall times.

A speedup is a peer's time divided by tilewise's: above 1, tilewise is faster. An average over different kinds
of problem would say little. Find the kind of your problem, and expect a speedup between its quartiles.

Kinds of problem:

{kinds}
Columns of the tables of all cases:

{legend}
"""
KINDS = """\
- *aligned*: the size of every row of both operands is a multiple of 16 bytes; *odd sizes* and
  *misaligned*: it is not.
- *few rows*: at most 64, as in the steps of a decoder; *small*: less than 2 MiB, bound by the launch.
- *other dims*: softmax along a dimension that is not the last; *transposed*: x and the result have
  different orders in memory.
- *nn, nt, tn, tt*: whether a, and then b, is row-major (n) or the transposed view of a row-major matrix (t).
- *gated*: `activation(a @ gate) * (a @ b)`; *lists*: matmuls of different sizes in one call; *even, skewed,
  drawn*: tokens spread over the experts equally, at random by weights that fall with the rank, or at random.
"""
PEERS = {"compile": "torch.compile", "triton": "Triton", "liger": "Liger", "upcast": "torch in float32"}
OTHERS = (
    "Speedup over others, where they support the case: median (lowest to highest; in how many of the cases):"
)
# Of the README's table; the gradients stand on the page.
SHORT = ("matmul", "grouped", "softmax", "add", OVERHEAD)
TITLES = {"grouped": "grouped_matmul", OVERHEAD: "host time of a call"}
# Other pages speak of "overhead".
HEADINGS = TITLES | {OVERHEAD: "overhead: host time of a call"}
COLUMNS = (
    "kind",
    "dtype",
    "cases",
    "lowest",
    "lower quartile",
    "median",
    "upper quartile",
    "highest",
    "case of the lowest",
)


@dataclass(frozen=True)
class Picture:
    """A file of docs/images and what is drawn into it."""

    run: Run
    op: str
    name: str
    alt: str
    size: tuple[float, float]
    draw: Callable[[Any], None]

    @property
    def path(self) -> Path:
        return IMAGES / self.name

    def digest(self) -> str:
        """Of all that it shows. Its bytes differ from one release of matplotlib to the next."""
        data = self.run.as_json()
        drawn = [plot.title(self.run), data["cases"], data["ceilings"]]
        figures = json.dumps(drawn, sort_keys=True).encode()
        code = b"".join(Path(str(module.__file__)).read_bytes() for module in (charts, kinds))
        return hashlib.sha256(figures + code).hexdigest()

    def is_current(self, root: Path) -> bool:
        file = root / self.path
        if not file.exists():
            return False
        with Image.open(file) as image:
            return bool(image.info.get("Description") == self.digest())

    def save(self, root: Path) -> None:
        (root / IMAGES).mkdir(parents=True, exist_ok=True)
        figure = Figure(figsize=self.size, dpi=110, layout="constrained")
        figure.suptitle(plot.title(self.run), fontsize=10)
        self.draw(figure.subfigures())
        figure.savefig(root / self.path, metadata={"Description": self.digest(), "Software": None})


def runs(root: Path) -> dict[str, Run]:
    """By the stem of their file, the newest first; of a day the most cases first, then the last by name."""
    found = {}
    for file in sorted((root / RESULTS).glob("*.json")):
        if "cases" in json.loads(file.read_text()):
            found[file.stem] = record.load(file)

    def rank(item: tuple[str, Run]) -> tuple[str, int, str]:
        stem, run = item
        return run.facts["date"], len(run.measurements), stem

    return dict(sorted(found.items(), key=rank, reverse=True))


def pictures(stem: str, run: Run) -> Iterator[Picture]:
    for section in plot.sections(run):
        name = section.name.replace(" ", "-")
        alt = f"{section.name} on {run.device}, {run.facts['date']}"
        op = section.name.split(" ")[0]
        yield Picture(run, op, f"{stem}-{name}.png", alt, (plot.WIDTH, section.height + 0.4), section.draw)


def linked(picture: Picture) -> str:
    """A picture that opens in its full size, which a phone's screen has not."""
    path = f"../{IMAGES.name}/{picture.name}"
    return f"[![{picture.alt}]({path})]({path})\n"


def heading(stem: str, run: Run) -> str:
    """With the name of a CPU's kind, which a virtual machine does not tell, from that of the record."""
    kind = re.fullmatch(r"cpu-[a-z0-9]+-(.+)-\d{4}-\d\d-\d\d", stem)
    named = re.sub(r"-|(?<=[a-z])(?=\d)", " ", kind[1]).title() + ": " if kind else ""
    return f"{named}{run.device}, {run.facts['date']}"


def performance(found: dict[str, Run]) -> str:
    """The text of docs/performance.md."""
    devices = "\n".join(f"- [{heading(stem, run)}]({DEVICES.name}/{stem}.md)" for stem, run in found.items())
    columns = re.sub(r"(^|\. )([^:.]+): ", r"\n- *\2*: ", report.LEGEND.rstrip(".")).strip()
    return INTRODUCTION.format(devices=devices, kinds=KINDS, legend=columns)


def of_device(stem: str, run: Run) -> str:
    """The text of a record's page."""
    facts, environment = run.facts, run.facts["environment"]
    lines = [f"# {heading(stem, run)}", ""]
    lines += [f"What the words and columns mean: [Performance](../{PAGE.name}).", ""]
    lines += [
        f"- measured by: `{facts['command']}`",
        f"- tilewise: {report.flat(environment['tilewise'])}",
        f"- driver: {report.flat(environment['driver'])}; Python {environment['python']}",
        f"- packages: {report.flat(environment['packages'])}",
        f"- peers: {', '.join(peers(run))}{in_few(run)}",
        f"- ceilings of this run: {report.ceilings_line(run.ceilings)}",
        f"- record: `{RESULTS / stem}.json`",
    ]
    lines += [f"- note: {facts['note']}"] if "note" in facts else []
    lines.append("")
    for op in run.operations:
        lines += [f"## {HEADINGS.get(op, op)}", "", *spreads(run, op)]
        drawn = [p for p in pictures(stem, run) if p.op == op]
        lines += [*map(linked, drawn), *folded(run, op)]
    if failures := [problem for m in run.measurements for problem in report.problems(m)]:
        lines += ["## Without a time", "", *(f"- {failure}" for failure in failures), ""]
    return "\n".join(lines)


def peers(run: Run) -> list[str]:
    """Those that any case was compared with, and no others."""
    return list(dict.fromkeys(peer for m in run.measurements for peer in m.peers))


def in_few(run: Run) -> str:
    few = [name.replace(":", " in ") for name in run.facts.get("quick_peers", ())]
    return f"; of these in the cases of `--quick` alone: {', '.join(few)}" if few else ""


def spreads(run: Run, op: str) -> list[str]:
    """A line for each kind and dtype: the speedup over torch."""
    rows = [
        [s.kind, s.dtype, str(s.cases), *(f"{r:.2f}" for r in (s.lowest, *s.quartiles, s.highest)), s.worst]
        for s in kinds.spreads(run.of(op))
    ]
    table = ["Speedup over torch:", "", report.markdown_table(COLUMNS, rows, 2), ""] if rows else []
    names = [name for name in peers(run) if name != "torch"]
    beside = [
        [kind, dtype, *(cells.get(name, "") for name in names)]
        for (kind, dtype), cells in others(run, op).items()
    ]
    if beside:
        titles = ["kind", "dtype", *(PEERS.get(name, name) for name in names)]
        table += [OTHERS, "", report.markdown_table(titles, beside, 2), ""]
    return table


def others(run: Run, op: str) -> dict[tuple[str, str], dict[str, str]]:
    """The speedup over each peer but torch, by kind and dtype; `2 of 9` where it is not of all cases."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    all_cases = Counter((kinds.kind(m), m.dtype) for m in run.of(op))
    for name in peers(run):
        for s in kinds.spreads(run.of(op), name) if name != "torch" else ():
            whole = all_cases[s.kind, s.dtype]
            notes = [f"{s.lowest:.2f} to {s.highest:.2f}"] if s.cases > 1 else []
            notes += [f"{s.cases} of {whole}"] if s.cases < whole else []
            cells = found.setdefault((s.kind, s.dtype), {})
            cells[name] = f"{s.quartiles[1]:.2f}" + (f" ({'; '.join(notes)})" if notes else "")
    return found


def folded(run: Run, op: str) -> list[str]:
    """Every case, behind a line to be opened."""
    lines = ['<details markdown="1">', f"<summary>every case of {HEADINGS.get(op, op)}</summary>", ""]
    lines += [report.markdown_table(*report.rows(run.of(op)), report.LEFT), ""]
    if op == OVERHEAD:
        parts = [part.row for part in report.parts(run.of(op))]
        lines += [
            report.markdown_table(report.PARTS_COLUMNS, parts, report.LEFT),
            "",
            report.PARTS_LEGEND,
            "",
        ]
    return [*lines, "</details>", ""]


def figures(found: dict[str, Run]) -> str:
    """What stands in the README: of every operation the newest speedups over torch on a GPU, by kind."""
    parts: dict[str, list[str]] = {}
    for op in SHORT:
        newest = next((r for r in found.values() if r.of(op) and r.facts["device"] != "CPU"), None)
        if newest is not None:
            version = newest.facts["environment"]["packages"]["torch"]
            title = f"One {newest.device}, {newest.facts['date']}, torch {version}"
            title += f" ({newest.facts['note']})" if "note" in newest.facts else ""
            parts.setdefault(title, []).extend(short(newest, op))
    lines: list[str] = []
    for title, rows in parts.items():
        lines += [
            f"{title}; `{PRINTED_BY}`:",
            "",
            "| operation | kind of problem | " + " | ".join(DTYPES) + " |",
        ]
        lines += ["| :-- | :-- |" + " --: |" * len(DTYPES), *rows, ""]
    lines += others_short(found)
    return "\n".join([*lines, f"Every case, the gradients, and how it was measured: [Performance]({PAGE})."])


def others_short(found: dict[str, Run]) -> list[str]:
    """Of the newest runs on a GPU beside others than torch: the speedups over them in bfloat16, by kind."""
    beside = [run for run in found.values() if run.facts["device"] != "CPU" and {*peers(run)} - {"torch"}]
    newest = {op: next((run for run in beside if run.of(op)), None) for op in SHORT}
    table = {op: others(run, op) for op, run in newest.items() if run is not None}
    if not table:
        return []
    names = list(
        dict.fromkeys(name for kinds_ in table.values() for cells in kinds_.values() for name in cells)
    )
    rows = [
        f"| {TITLES.get(op, op)} | {kind} | " + " | ".join(cells.get(name, "") for name in names) + " |"
        for op, kinds_ in table.items()
        for (kind, dtype), cells in kinds_.items()
        if dtype == DTYPES[0]
    ]
    packages = beside[0].facts["environment"]["packages"]
    of = ", ".join(f"{name} {packages[name]}" for name in VERSIONS if name in packages)
    return [
        f"Speedups over others in {DTYPES[0]} on the same device ({of}): median (lowest to highest; in how",
        "many of the kind's cases, where not in all):",
        "",
        "| operation | kind of problem | " + " | ".join(PEERS.get(name, name) for name in names) + " |",
        "| :-- | :-- |" + " --: |" * len(names),
        *rows,
        "",
    ]


# The notebooks speak of one GPU throughout.
NAMED = "NVIDIA H200"
# In prose: `<!-- record: add; contiguous 2^28; bfloat16; us -->366.9<!-- -->`.
QUOTED = re.compile(r"(<!-- record: (\S+); ([^;]+); (\S+); (\S+) -->)[^<]*(<!-- -->)")
VALUES: dict[str, Callable[[Run, Measurement], str]] = {
    "date": lambda run, m: str(run.facts["date"]),
    "us": lambda run, m: f"{m.milliseconds['tilewise'] * 1e3:.1f}",
    "torch_us": lambda run, m: f"{m.milliseconds['torch'] * 1e3:.1f}",
    "GB/s": lambda run, m: f"{m.rate() / 1e9:.0f}",
    "TFLOP/s": lambda run, m: f"{m.rate() / 1e12:.0f}",
    "speedup": lambda run, m: f"{m.ratios['torch']:.2f}",
    "%_of_copy": lambda run, m: f"{100 * m.ratios[COPY]:.0f}",
}


def quoted(text: str, found: dict[str, Run]) -> str:
    """The text with its figures from the newest record of the GPU it names that has the case."""
    named = [run for run in found.values() if run.facts["device"] == NAMED]
    newest = {m.key: (run, m) for run in reversed(named) for m in run.measurements if not m.failed}

    def value(match: re.Match[str]) -> str:
        begin, op, case, dtype, unit, end = match.groups()
        run, m = newest[op, case, dtype]
        return begin + VALUES[unit](run, m) + end

    return QUOTED.sub(value, text)


VERSIONS = ("torch", "triton", "quack-kernels", "liger-kernel")
PRINTED_BY = "python -m tilewise.bench all"
DTYPES = ("bfloat16", "float16", "float32", "float64")


def short(run: Run, op: str) -> list[str]:
    """A row for each kind: of each dtype the median, and the quartiles of more than three cases."""
    by_kind: dict[str, dict[str, str]] = {}
    for s in kinds.spreads(run.of(op)):
        low, median, high = s.quartiles
        spread = f" ({low:.2f} to {high:.2f})" if s.cases > 3 else ""
        by_kind.setdefault(s.kind, {})[s.dtype] = f"{median:.2f}{spread}"
    return [
        f"| {TITLES.get(op, op)} | {kind} | " + " | ".join(cells.get(dtype, "") for dtype in DTYPES) + " |"
        for kind, cells in by_kind.items()
    ]


def write(root: Path, check: bool) -> list[str]:
    """What was out of date; it is written anew unless only checked."""
    found = runs(root)
    readme = root / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    texts = {PAGE: performance(found), Path("README.md"): f"{before}{BEGIN}\n{figures(found)}\n{END}{after}"}
    texts |= {DEVICES / f"{stem}.md": of_device(stem, run) for stem, run in found.items()}
    for notebook in sorted((root / NOTEBOOKS).glob("*.ipynb")):
        texts[notebook.relative_to(root)] = quoted(notebook.read_text(), found)
    wanted = [picture for stem, run in found.items() for picture in pictures(stem, run)]
    stale = []
    for path, text in texts.items():
        if not (root / path).exists() or (root / path).read_text() != text:
            stale.append(str(path))
            if not check:
                (root / path).parent.mkdir(exist_ok=True)
                (root / path).write_text(text)
    for picture in wanted:
        if not picture.is_current(root):
            stale.append(str(picture.path))
            if not check:
                picture.save(root)
    kept = {root / picture.path for picture in wanted} | {root / path for path in texts}
    for file in {*(root / IMAGES).glob("*.png"), *(root / DEVICES).glob("*.md")} - kept:
        stale.append(str(file.relative_to(root)))
        if not check:
            file.unlink()
    return stale


def main(arguments: list[str], root: Path = ROOT) -> int:
    check = arguments == ["--check"]
    if arguments and not check:
        print(__doc__, file=sys.stderr)
        return 2
    stale = write(root, check)
    for path in stale:
        print(f"{path}: {'out of date' if check else 'written'}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
