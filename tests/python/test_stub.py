"""The stub of the compiled module agrees with it."""

import importlib.util
import subprocess
import sys

import pytest


def test_stubtest_finds_nothing():
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "tilewise._core"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed():
    import tilewise

    package = importlib.util.find_spec("tilewise").submodule_search_locations[0]
    for name in ("py.typed", "_core.pyi", "__init__.py"):
        with open(f"{package}/{name}") as file:
            assert file.readable()
    assert set(tilewise.__all__) >= {"add", "softmax", "log_softmax", "matmul"}
