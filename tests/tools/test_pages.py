"""docs/performance.md, its pictures and the README's figures are those of the committed records."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from support.bench_run import whole_run

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks/pages.py"

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
    written = ["docs/performance.md", "README.md", "docs/images/small-add-by-size.png"]
    assert pages.main(["--check"], checkout) == 1
    assert not (checkout / pages.IMAGES).exists()
    assert pages.write(checkout, check=False) == written
    assert pages.main(["--check"], checkout) == 0
    file = checkout / pages.RESULTS / "small.json"
    data = json.loads(file.read_text())
    data["cases"][0]["milliseconds"]["tilewise"] *= 3
    file.write_text(json.dumps(data))
    assert pages.write(checkout, check=True) == written


def test_pictures_of_records_that_are_gone_go_too(checkout):
    pages.write(checkout, check=False)
    (checkout / pages.RESULTS / "small.json").rename(checkout / pages.RESULTS / "renamed.json")
    stale = pages.write(checkout, check=False)
    assert "docs/images/small-add-by-size.png" in stale
    assert [file.name for file in (checkout / pages.IMAGES).iterdir()] == ["renamed-add-by-size.png"]


def test_the_readme_keeps_what_was_written_by_hand(checkout):
    before = (checkout / "README.md").read_text()
    pages.write(checkout, check=False)
    after = (checkout / "README.md").read_text()
    head, tail = before.partition(pages.BEGIN)[0], before.partition(pages.END)[2]
    assert after.startswith(head)
    assert after.endswith(tail)
    assert "add on one NVIDIA H200, 2026-01-02" in after
    assert "| bfloat16 | 5 | 1.00 |" in after


def test_newer_records_come_first_and_a_cpu_is_not_the_readmes(checkout):
    run = whole_run()
    run.facts |= {"date": "2026-02-03", "device": "CPU"}
    run.measurements = run.of("softmax")
    (checkout / pages.RESULTS / "cpu.json").write_text(json.dumps(run.as_json()))
    found = pages.runs(checkout)
    assert list(found) == ["cpu", "small"]
    assert "softmax" not in pages.figures(found)
    assert pages.performance(found).index("2026-02-03") < pages.performance(found).index("2026-01-02")
