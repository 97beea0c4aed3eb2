"""Writes docs/performance.md, its pictures, and the README's figures from the records in benchmarks/results.

python benchmarks/pages.py            write them
python benchmarks/pages.py --check    write nothing; name what is out of date, and exit with 1 if anything is
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from tilewise.bench import charts, plot, record, report
from tilewise.bench.record import OVERHEAD, Run

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, IMAGES = Path("benchmarks/results"), Path("docs/performance.md"), Path("docs/images")
BEGIN, END = "<!-- figures: written by benchmarks/pages.py -->", "<!-- end of figures -->"
INTRODUCTION = """\
# Performance

Written by `benchmarks/pages.py` from the records in `benchmarks/results`; each holds every figure, the
machine, the versions, and the command that makes it again.

Every result was compared with torch in float64 before it was timed. tilewise and its peers took turns in one
run. On a GPU the times are device time between two events, medians, with the L2 cache flushed before each
call; on a CPU, wall time.

{legend}
"""


@dataclass(frozen=True)
class Picture:
    """A file of docs/images and what is drawn into it."""

    run: Run
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
        return hashlib.sha256(figures + Path(str(charts.__file__)).read_bytes()).hexdigest()

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
    """By the stem of their file, the newest first; of one day, the one with the most cases first."""
    found = {}
    for file in sorted((root / RESULTS).glob("*.json")):
        if "cases" in json.loads(file.read_text()):
            found[file.stem] = record.load(file)
    return dict(
        sorted(
            found.items(), key=lambda item: (item[1].facts["date"], len(item[1].measurements)), reverse=True
        )
    )


def pictures(stem: str, run: Run) -> Iterator[Picture]:
    for section in plot.sections(run):
        name = section.name.replace(" ", "-")
        alt = f"{section.name} on {run.device}, {run.facts['date']}"
        yield Picture(run, f"{stem}-{name}.png", alt, (plot.WIDTH, section.height + 0.4), section.draw)


def linked(picture: Picture) -> str:
    """A picture that opens in its full size, which a phone's screen has not."""
    path = picture.path.relative_to(PAGE.parent)
    return f"[![{picture.alt}]({path})]({path})\n"


def performance(found: dict[str, Run]) -> str:
    """The text of docs/performance.md."""
    lines = [INTRODUCTION.format(legend=report.LEGEND)]
    for stem, run in found.items():
        facts, environment = run.facts, run.facts["environment"]
        lines += [f"## {run.device}, {facts['date']}", ""]
        lines += [
            f"- measured by: `{facts['command']}`",
            f"- tilewise: {report.flat(environment['tilewise'])}",
        ]
        lines += [f"- driver: {report.flat(environment['driver'])}; Python {environment['python']}"]
        lines += [f"- packages: {report.flat(environment['packages'])}"]
        lines += [f"- ceilings of this run: {report.ceilings_line(run.ceilings)}"]
        lines += [f"- record: `{RESULTS / stem}.json`"]
        lines += [f"- note: {facts['note']}"] if "note" in facts else []
        lines += ["", *map(linked, pictures(stem, run))]
        for op in run.operations:
            lines += [f"### {op}", "", report.markdown_table(*report.rows(run.of(op)), report.LEFT), ""]
            if op == OVERHEAD:
                parts = [part.row for part in report.parts(run.of(op))]
                lines += [
                    report.markdown_table(report.PARTS_COLUMNS, parts, report.LEFT),
                    "",
                    report.PARTS_LEGEND,
                    "",
                ]
        if failures := [problem for m in run.measurements for problem in report.problems(m)]:
            lines += ["### Without a time", "", *(f"- {failure}" for failure in failures), ""]
    return "\n".join(lines)


def figures(found: dict[str, Run]) -> str:
    """What stands in the README: of every operation the newest figures of a GPU."""
    lines: list[str] = []
    for op in charts.SIZES:
        newest = next(((s, r) for s, r in found.items() if r.of(op) and r.facts["device"] != "CPU"), None)
        if newest is None:
            continue
        stem, run = newest
        lines += ["", f"{op} on one {run.device}, {run.facts['date']}:", "", *summary(run, op)]
        lines += [f"\n![{p.alt}]({p.path})" for p in pictures(stem, run) if p.alt.startswith(f"{op} by size")]
    return "\n".join(
        [*lines, "", f"All figures, how they were made, and what has changed since: [{PAGE}]({PAGE})."]
    ).strip()


def summary(run: Run, op: str) -> list[str]:
    """A line for each dtype: torch's time over tilewise's, and the extremes."""
    rows = []
    for dtype in dict.fromkeys(m.dtype for m in run.of(op)):
        ratios = {m.case: m.ratios["torch"] for m in run.of(op) if m.dtype == dtype and "torch" in m.ratios}
        if ratios:
            by_ratio = sorted(ratios, key=ratios.__getitem__)
            ends = [f"{ratios[case]:.2f} ({case})" for case in (by_ratio[0], by_ratio[-1])]
            mean = statistics.geometric_mean(ratios.values())
            rows.append([dtype, str(len(ratios)), f"{mean:.2f}", *ends])
    columns = ("dtype", "cases", "torch's time over tilewise's, geometric mean", "lowest", "highest")
    return [report.markdown_table(columns, rows)] if rows else []


def write(root: Path, check: bool) -> list[str]:
    """What was out of date; it is written anew unless only checked."""
    found = runs(root)
    readme = root / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    texts = {PAGE: performance(found), Path("README.md"): f"{before}{BEGIN}\n{figures(found)}\n{END}{after}"}
    wanted = [picture for stem, run in found.items() for picture in pictures(stem, run)]
    stale = []
    for path, text in texts.items():
        if not (root / path).exists() or (root / path).read_text() != text:
            stale.append(str(path))
            if not check:
                (root / path).write_text(text)
    for picture in wanted:
        if not picture.is_current(root):
            stale.append(str(picture.path))
            if not check:
                picture.save(root)
    for file in set((root / IMAGES).glob("*.png")) - {root / picture.path for picture in wanted}:
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
