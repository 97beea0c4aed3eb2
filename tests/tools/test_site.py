"""The site builds without a warning, and its pages hold what the files they quote say."""

import html
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if not (ROOT / "mkdocs.yml").exists():
        pytest.skip("no checkout")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def words(page):
    """The text of a page's article, without markup and with single spaces."""
    article = re.search("<article.*?</article>", page.read_text(), re.DOTALL)[0]
    return " ".join(html.unescape(re.sub("<[^>]+>", "", article)).split())


def test_every_directive_was_filled(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    left = "<!-- (section|file|head|errors|variants|kernels|measurements)|In the repository: "
    assert not [page for page in pages if re.search(left, page.read_text())]


def test_every_kernel_has_a_page_with_its_head(site):
    kernels = list((ROOT / "kernels").glob("*.cu"))
    assert kernels
    listed = words(site / "how/index.html")
    for kernel in kernels:
        first = kernel.read_text().splitlines()[2].removeprefix("// ")
        page = site / f"how/{kernel.stem}/index.html"
        assert first in words(page)
        assert f"{kernel.stem}: " in listed
        assert f'href="../../measurements/{kernel.stem}/"' in page.read_text()
        assert (site / f"measurements/{kernel.stem}/index.html").exists()


def test_a_kernel_without_a_page_is_given_one(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/fresh.cu").write_text(
        "// targets: 90\n//\n// Something new: as yet unexplained.\n\n#include <x>\n"
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/hooks.py").write_text((ROOT / "docs/hooks.py").read_text())
    (tmp_path / "docs/index.md").write_text("# Home\n\n<!-- kernels -->\n")
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: x\nhooks: [docs/hooks.py]\nexclude_docs: '*.py'\nnav: [index.md, {How it works: []}]\n"
        "theme: mkdocs\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "as yet unexplained" in (tmp_path / "site/how/fresh/index.html").read_text()


def test_quoted_sections_stand_on_their_pages(site):
    for page, sentence in {
        "supported": "All tensors of a call share library and device.",
        "torch": "composable with reverse mode",
        "guarantees": "Work is queued on the caller's current stream of the tensors' device.",
        "architecture": "A call goes one way, downwards; nothing below knows anything above.",
        "contributing": "A comment gives a reason, not a paraphrase.",
        "errors": "Transpose one of them?",
        "quickstart": "one kernel; bias and gelu in float32, rounded once",
    }.items():
        assert sentence in words(site / page / "index.html"), page


def test_the_reference_shows_the_docstrings_of_compiled_functions(site):
    text = words(site / "api/index.html")
    for sentence in (
        "x + alpha * y, as torch.add.",
        "number that multiplies y. A float needs a floating result.",
        "what leaky_relu multiplies negative values by.",
    ):
        assert sentence in text


def test_kernels_and_their_measurements_stand_under_their_operations(site):
    for page in ("how", "measurements"):
        text = (site / page / "index.html").read_text()
        places = [
            text.index(f">{heading}<") if page == "how" else text.index(f"{heading}: <a")
            for heading in ("softmax and log_softmax", "matmul", "grouped_matmul")
        ]
        assert places == sorted(places)


def test_every_notebook_is_a_page_with_its_pictures(site):
    notebooks = list((ROOT / "examples/notebooks").glob("*.ipynb"))
    assert notebooks
    for notebook in notebooks:
        page = site / f"notebooks/{notebook.stem}/index.html"
        cells = json.loads(notebook.read_text())["cells"]
        assert "".join(cells[0]["source"]).splitlines()[0].lstrip("# ") in words(page)
        shown = sum("image/png" in o.get("data", {}) for cell in cells for o in cell.get("outputs", []))
        pictures = re.findall(r'<img[^>]* src="([^"]+)"', page.read_text())
        assert len(pictures) >= shown > 0
        assert all((page.parent / picture).exists() for picture in pictures)


def test_every_public_function_is_in_the_reference(site):
    import tilewise

    pages = sorted(site.glob("api*/index.html"))
    text = " ".join(map(words, pages))
    headings = re.findall("<h[23] id=.*?</h[23]>", "".join(page.read_text() for page in pages), re.DOTALL)
    titles = [re.sub("<[^>]+>", "", heading).strip() for heading in headings]
    assert len(titles) > 20
    # As of a function in a module of its name.
    assert all(title != following for title, following in itertools.pairwise(titles))
    for name in tilewise.__all__:
        if not name.endswith("Error") and name != "__version__":
            assert f"{name} (" in text or f"{name}(" in text, name
    errors = words(site / "errors/index.html")
    assert not [n for n in tilewise.__all__ if n.endswith("Error") and n not in errors]
