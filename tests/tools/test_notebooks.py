"""The notebooks run from top to bottom, and their outputs as committed hold no error and no machine."""

import importlib.util
import re
from pathlib import Path

import pytest

for package in ("torch", "scipy", "matplotlib", "nbclient", "ipykernel"):
    pytest.importorskip(package)

import nbformat
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# The beginning of an absolute path, on any system.
MACHINE_PATH = re.compile(
    r"(?<![\w.$~-])/(home|root|tmp|usr|var|opt|work|mnt|srv|Users|private)/|\b[A-Za-z]:\\\w"
)


@pytest.fixture(scope="module")
def refresh():
    spec = importlib.util.spec_from_file_location("refresh", FOLDER / "refresh.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def texts(notebook):
    """All that is said, in sources and outputs, but pictures."""
    for cell in notebook.cells:
        yield cell.source
    for output in outputs(notebook):
        yield output.get("text", "")
        yield from (text for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


# Cells that plan for a GPU by its name say the same on every machine.
PLANNED = re.compile(r"\bexplain\(.*\bdevice=(name|gpu|\")")


def planned(notebook):
    """What such cells print and show, by number."""
    shown = {}
    for number, cell in enumerate(notebook.cells):
        if PLANNED.search(cell.source) and cell.cell_type == "code":
            shown[number] = [o.get("text") or o.data.get("text/html") for o in cell.outputs]
    return shown


def test_all_of_the_issue_are_there(refresh):
    assert [path.name[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]
    assert refresh.notebooks() == NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_what_is_committed(refresh, path):
    ran, committed = refresh.executed(path), nbformat.read(path, as_version=4)
    # A warning that a reader would see is a fault as well; an error has ended the run already.
    assert not [output.text for output in outputs(ran) if output.get("name") == "stderr"]
    # The same pictures and the same lines, though times differ.
    kinds = [[sorted(output.get("data", "")) for output in outputs(n)] for n in (ran, committed)]
    assert kinds[0] == kinds[1]
    assert planned(ran) == planned(committed), "a plan has changed: run examples/notebooks/refresh.py"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_is_lean(refresh, path):
    notebook = nbformat.read(path, as_version=4)
    assert refresh.lean(notebook) == notebook, "run examples/notebooks/refresh.py"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert not [found[0] for text in texts(notebook) for found in [MACHINE_PATH.search(text)] if found]
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_files_it_names_exist(path):
    notebook = nbformat.read(path, as_version=4)
    said = "\n".join(cell.source for cell in notebook.cells)
    named = [ROOT / name for name in re.findall(r"`((?:src|kernels|python|benchmarks)/[\w./-]+)`", said)]
    named += [path.parent / link for link in re.findall(r"\]\((?!http)([^)#]+)\)", said)]
    assert named
    assert not [str(name) for name in named if not name.exists()]


def test_a_path_of_a_machine_is_found():
    for text in ("File /home/me/a.py", "'/tmp/x'", r"C:\Users\me", "<img src=/Users/me/a.png>"):
        assert MACHINE_PATH.search(text), text
    for text in ("src/cuda/var/x", "TFLOP/s", "k3 * log(s) / log(t)", "https://example.org/home/x", "1/tmp"):
        assert not MACHINE_PATH.search(text), text


def test_a_cell_that_fails_fails_the_run(refresh, tmp_path):
    cells = [nbformat.v4.new_code_cell("print(1)"), nbformat.v4.new_code_cell("assert 1 == 2")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "wrong.ipynb")
    with pytest.raises(CellExecutionError, match="1 == 2"):
        refresh.executed(tmp_path / "wrong.ipynb")


def test_leaning_takes_out_times_and_keeps_pictures(refresh, tmp_path):
    source = "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()"
    folded = nbformat.v4.new_code_cell(source, metadata={"jupyter": {"source_hidden": True}, "tags": []})
    nbformat.write(nbformat.v4.new_notebook(cells=[folded]), tmp_path / "a.ipynb")
    ran = refresh.executed(tmp_path / "a.ipynb")
    assert "execution" in ran.cells[0].metadata
    lean = refresh.lean(ran)
    assert lean.cells[0].metadata == {"jupyter": {"source_hidden": True}}
    before, after = (output.data["image/png"] for n in (ran, lean) for output in outputs(n))
    assert 0 < len(after) < len(before)
    assert refresh.lean(lean) == lean
