"""Executes notebooks and writes them back as they are committed.

    python examples/notebooks/refresh.py [FILE ...]

Without files, all of them. Needs `pip install --group test`. Look at the difference before committing it:
measured times change with every run and machine, and nothing else should, unless you changed it.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebooks() -> list[Path]:
    return sorted(HERE.glob("*.ipynb"))


def executed(path: Path, timeout_s: int = 120) -> Any:
    """The notebook after running all of its cells, in a folder of its own.

    Raises nbclient's CellExecutionError where a cell does.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        options = {"kernel_name": "python3", "timeout": timeout_s, "coalesce_streams": True}
        client = NotebookClient(notebook, resources=resources, **options)
        return client.execute()


def lean(notebook: Any) -> Any:
    """Without times of execution, versions and other traces of a machine; pictures in few colours."""
    notebook = nbformat.from_dict(notebook)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02d}"
        # Cells that only draw are folded: what they show is the point.
        folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        cell.metadata = nbformat.from_dict({"jupyter": {"source_hidden": True}} if folded else {})
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = small(output.data["image/png"])
    nbformat.validate(notebook)
    return notebook


def small(png: str) -> str:
    """A picture of lines and areas loses nothing with a palette, and two thirds of its bytes."""
    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    if picture.mode == "P":
        return png
    packed = io.BytesIO()
    picture.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def main(arguments: list[str]) -> int:
    # The outputs are of a CPU wherever they are made; a GPU's figures belong in benchmarks/results.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for path in [Path(a) for a in arguments] or notebooks():
        nbformat.write(lean(executed(path)), path)
        print(path.name, f"{path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
