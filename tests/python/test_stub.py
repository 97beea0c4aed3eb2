"""Type checkers find the package's types. (That the compiled module's stub agrees, make lint says.)"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "docs/stub.py"


def test_the_package_is_typed():
    import tilewise

    package = importlib.util.find_spec("tilewise").submodule_search_locations[0]
    for name in ("py.typed", "_core.pyi", "__init__.py"):
        with open(f"{package}/{name}") as file:
            assert file.readable()
    assert set(tilewise.__all__) >= {"add", "softmax", "log_softmax", "matmul"}


def test_the_stub_has_the_docstrings_of_the_module():
    if not TOOL.exists():
        pytest.skip("no checkout")
    checked = subprocess.run([sys.executable, str(TOOL), "--check"])
    assert checked.returncode == 0, "run docs/stub.py after a change to a docstring in src/python"
