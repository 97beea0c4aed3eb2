"""docs/performance, its pictures and the README's figures are those of the committed records."""

import importlib.util
import itertools
import json
import re
import shutil
import statistics
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from support.bench_run import measurement, whole_run

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks/pages.py"
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}

if not SCRIPT.exists():
    pytest.skip("no checkout", allow_module_level=True)
spec = importlib.util.spec_from_file_location("pages", SCRIPT)
pages = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the script reads and writes, with a small record of its own."""
    results = tmp_path / pages.RESULTS
    results.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "README.md", tmp_path)
    (results / "suite.json").write_text(json.dumps({"tests": "1 passed"}))
    run = whole_run()
    run.measurements = run.of("add")
    (results / "small.json").write_text(json.dumps(run.as_json()))
    return tmp_path


def test_what_is_committed_is_up_to_date():
    assert pages.write(ROOT, check=True) == [], "run `make figures`"


def test_a_changed_record_makes_text_and_pictures_stale(checkout):
    pictures = ["docs/images/small-add-by-size.png", "docs/images/small-add-by-kind.png"]
    written = ["docs/performance.md", "README.md", "docs/performance/small.md", *pictures]
    assert pages.main(["--check"], checkout) == 1
    assert not (checkout / pages.IMAGES).exists()
    assert pages.write(checkout, check=False) == written
    assert pages.main(["--check"], checkout) == 0
    file = checkout / pages.RESULTS / "small.json"
    data = json.loads(file.read_text())
    data["cases"][0]["milliseconds"]["tilewise"] *= 3
    file.write_text(json.dumps(data))
    assert pages.write(checkout, check=True) == [path for path in written if path != "docs/performance.md"]


def test_pages_and_pictures_of_records_that_are_gone_go_too(checkout):
    pages.write(checkout, check=False)
    (checkout / pages.RESULTS / "small.json").rename(checkout / pages.RESULTS / "renamed.json")
    stale = pages.write(checkout, check=False)
    assert "docs/images/small-add-by-size.png" in stale
    names = sorted(file.name for file in (checkout / pages.IMAGES).iterdir())
    assert names == ["renamed-add-by-kind.png", "renamed-add-by-size.png"]
    assert "docs/performance/small.md" in stale
    assert [file.name for file in (checkout / pages.DEVICES).iterdir()] == ["renamed.md"]
    assert "(performance/renamed.md)" in (checkout / pages.PAGE).read_text()


def test_the_readme_keeps_what_was_written_by_hand(checkout):
    before = (checkout / "README.md").read_text()
    pages.write(checkout, check=False)
    after = (checkout / "README.md").read_text()
    head, tail = before.partition(pages.BEGIN)[0], before.partition(pages.END)[2]
    assert after.startswith(head)
    assert after.endswith(tail)
    assert "One NVIDIA H200, 2026-01-02, torch 2.11.0" in after
    assert "| add | contiguous | 1.00 (1.00 to 1.00) |" in after


def test_a_speedup_is_summed_up_with_its_own_kind_alone(checkout):
    run = whole_run()
    run.measurements = [
        measurement("matmul", f"{n}^3 nn", bytes=1, flops=1, tilewise=1.0, torch=1.0 + n / 1e6)
        for n in (512, 1024, 2048, 4096)
    ]
    odd = [measurement("matmul", f"{n}^3 nn", bytes=1, flops=1, tilewise=1.0, torch=5.0) for n in (513, 1023)]
    rest = {"16x4096x4096 nt": 1.1, "4096^3 nt gated": 1.3, "64x4096x4096 nt residual": 1.2}
    rows = [
        measurement("matmul", case, bytes=1, flops=1, tilewise=1.0, torch=ms) for case, ms in rest.items()
    ]
    experts = measurement("grouped", "8x4096x14336x4096 nn even", bytes=1, flops=1, tilewise=1.0, torch=1.4)
    run.measurements += [*odd, *rows, experts]
    for op in run.operations:
        run.settle(op)
    (checkout / pages.RESULTS / "small.json").write_text(json.dumps(run.as_json()))
    pages.write(checkout, check=False)
    readme = (checkout / "README.md").read_text()
    for row in (
        "| matmul | aligned | 1.00 (1.00 to 1.00) |",
        "| matmul | odd sizes | 5.00 |",
        "| matmul | few rows | 1.10 |",
        "| matmul | aligned, gated | 1.30 |",
        "| matmul | few rows, residual | 1.20 |",
        "| grouped_matmul | many rows a group | 1.40 |",
    ):
        assert row in readme
    page = (checkout / "docs/performance/small.md").read_text()
    assert "| odd sizes | bfloat16 | 2 | 5.00 | 5.00 | 5.00 | 5.00 | 5.00 | 513^3 nn |" in page


def test_other_libraries_have_a_table_of_their_own(checkout):
    run = whole_run()
    times = {1024: {"quack": 1.1, "compile": 1.5}, 2048: {"quack": 0.9}, 4096: {"quack": 1.0}}
    run.measurements = [
        measurement("softmax", f"32768x{n}", bytes=1 << 30, tilewise=1.0, torch=2.0, **of)
        for n, of in times.items()
    ]
    run.settle("softmax")
    run.facts |= {"quick_peers": ["compile:softmax"], "note": "of other sources"}
    (checkout / pages.RESULTS / "small.json").write_text(json.dumps(run.as_json()))
    pages.write(checkout, check=False)
    readme, page = ((checkout / name).read_text() for name in ("README.md", "docs/performance/small.md"))
    assert "| operation | kind of problem | quack | torch.compile |" in readme
    assert "| softmax | last dim, aligned | 1.00 (0.90 to 1.10) | 1.50 (1 of 3) |" in readme
    assert "| last dim, aligned | bfloat16 | 1.00 (0.90 to 1.10) | 1.50 (1 of 3) |" in page
    assert (
        "- peers: torch, quack, compile; of these in the cases of `--quick` alone: compile in softmax\n"
        in page
    )
    assert "2026-01-02, torch 2.11.0 (of other sources); `" in readme


def test_every_case_of_the_benchmark_has_a_kind():
    torch = pytest.importorskip("torch")
    from tilewise.bench import cases, kinds, options

    for device, op in itertools.product(("cpu", "cuda"), options.OPERATIONS):
        found = {}
        for case in cases.cases(op, device, quick=False):
            bytes = 0 if op in ("overhead", "grouped") else case.build(torch.device("meta")).min_bytes()
            m = measurement(op, case.name, case.dtype, bytes=bytes)
            found.setdefault(kinds.kind(m), []).append(case.name)
        assert "other" not in found
        if op == "softmax":
            assert {"few rows", "other dims", "transposed", "last dim, aligned"} <= found.keys()
            assert not [name for name in found["few rows"] if "dim" in name]


def test_newer_records_come_first_and_a_cpu_is_not_the_readmes(checkout):
    run = whole_run()
    run.facts |= {"date": "2026-02-03", "device": "CPU"}
    run.measurements = run.of("softmax")
    (checkout / pages.RESULTS / "cpu.json").write_text(json.dumps(run.as_json()))
    found = pages.runs(checkout)
    assert list(found) == ["cpu", "small"]
    assert "softmax" not in pages.figures(found)
    assert pages.performance(found).index("2026-02-03") < pages.performance(found).index("2026-01-02")


def test_figures_in_notebooks_are_the_newest_records(checkout):
    notebook = checkout / pages.NOTEBOOKS / "a.ipynb"
    notebook.parent.mkdir(parents=True)
    quoted = "it takes <!-- record: add; contiguous 2^20; bfloat16; us -->1.0<!-- --> us, the speedup is "
    quoted += "<!-- record: add; contiguous 2^20; bfloat16; speedup --><!-- -->"
    notebook.write_text(quoted)
    assert "examples/notebooks/a.ipynb" in pages.write(checkout, check=True)
    pages.write(checkout, check=False)
    assert "us -->0.3<!-- --> us" in notebook.read_text()
    assert "speedup -->1.00<!-- -->" in notebook.read_text()
    assert pages.write(checkout, check=True) == []


def test_no_notebook_has_a_figure_of_a_gpu_without_its_record_or_its_date():
    for notebook in (ROOT / pages.NOTEBOOKS).glob("*.ipynb"):
        for cell in json.loads(notebook.read_text())["cells"]:
            text = "".join(cell["source"])
            # A line that begins with a comment would end its paragraph.
            assert "\n<!--" not in text, notebook.name
            # A picture stays as it was drawn, whatever the record says later.
            drawn = cell["cell_type"] == "code" and re.search(r"20\d\d-\d\d", text)
            assert not drawn, (notebook.name, text)
            if cell["cell_type"] == "markdown" and "Measured, on an NVIDIA H200" in text:
                dated = re.search(r"\d+ (November|December) 2026|; date -->", text)
                assert dated, (notebook.name, text)


def test_the_speedups_on_cpus_of_the_readme_are_those_of_the_records():
    records = [run for run in pages.runs(ROOT).values() if run.facts["device"] == "CPU"]
    cases = [[m for m in run.measurements if m.op != pages.OVERHEAD] for run in records]
    found = [sorted(m.ratios["torch"] for m in of if "torch" in m.ratios) for of in cases]
    quartiles = [statistics.quantiles(of, n=4, method="inclusive") for of in found]
    medians = [middle for _, middle, _ in quartiles]
    spread = min(low for low, _, _ in quartiles), max(high for _, _, high in quartiles)
    sentence = (
        f"of all cases were {min(medians):.2f} to {max(medians):.2f} in {NUMBERS[len(records)]} records, "
        f"their quartiles {spread[0]:.2f} to {spread[1]:.2f}, the lowest {min(of[0] for of in found):.2f};"
    )
    assert sentence in " ".join((ROOT / "README.md").read_text().split())


def test_the_decoder_block_of_the_readme_is_that_of_its_page():
    rows = [line.split("|")[1:] for line in (ROOT / "README.md").read_text().splitlines() if "width" in line]
    figures = [[cell.strip(" *") for cell in row[1:5]] for row in rows if len(row) > 5]
    assert len(figures) == 6
    # torch eager and compiled, tilewise eager and compiled.
    page = (ROOT / "docs/measurements/decoder_block.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.count("|") > 8]
    shown = [[*row[2:4], *row[6:8]] for row in cells]
    assert all(row in shown for row in figures)
