"""The environment report: always there, whatever is broken."""

import json
import subprocess
import sys

import pytest
import tilewise as tw
from support import fresh


def test_it_names_the_version_and_this_python():
    printed = fresh.run("import tilewise; print(tilewise.info())")
    assert tw.__version__ in printed
    assert sys.version.split()[0] in printed


def test_the_function_still_works_once_the_module_was_imported():
    fresh.run("import tilewise, tilewise.info; assert tilewise.info() == tilewise.info.report()")


def test_it_imports_neither_torch_nor_numpy():
    fresh.run("import sys, tilewise; tilewise.info(); assert not {'torch', 'numpy'} & sys.modules.keys()")


def test_as_json():
    command = [sys.executable, "-m", "tilewise.info", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["tilewise"]["version"] == tw.__version__
    assert not done.stderr


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("--jsn", 2)])
def test_it_says_what_may_be_asked(word, status):
    done = subprocess.run([sys.executable, "-m", "tilewise.info", word], capture_output=True, text=True)
    assert done.returncode == status
    assert "--json" in done.stdout + done.stderr


def test_it_names_the_libraries_in_this_process():
    import tilewise.info

    libraries = tilewise.info.collect()["libraries"]
    assert tw._core.__file__ in libraries
    assert len(set(libraries)) == len(libraries)


def test_it_survives_a_broken_installation():
    import tilewise.info

    # None in sys.modules makes the import fail.
    code = (
        "import sys, runpy; sys.modules['tilewise'] = None; "
        f"runpy.run_path({tilewise.info.__file__!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "unknown (" in done.stdout
    assert sys.version.split()[0] in done.stdout


@pytest.mark.parametrize(
    ("targets", "runs"), [(["sm_90", "sm_90a"], "sm_90, sm_90a"), ([], "nothing of this build")]
)
def test_it_says_which_code_a_gpu_runs(monkeypatch, targets, runs):
    import tilewise.info

    figures = dict.fromkeys(("threads", "blocks", "registers", "shared_bytes", "shared_bytes_per_block"), 1)
    figures |= dict.fromkeys(("multiprocessors", "l2_bytes", "memory_bytes", "clock_hz"), 1)
    gpu = {"index": 0, "name": "a GPU", "compute_capability": (9, 0), "memory_bytes_per_second": None}
    monkeypatch.setattr(tw, "devices", lambda: [gpu | figures | {"targets": targets}])
    described = tilewise.info.collect()["devices"]["cuda:0"]["runs"]
    assert described.startswith(runs)
    assert ("TILEWISE_CUDA_TARGETS=9.0" in described) == (not targets)


def test_it_says_when_a_build_has_no_kernels(monkeypatch):
    import tilewise.info

    build = {"version": "0.1.0", "nvcc": None, "targets": [], "emulated": False, "kernels": []}
    monkeypatch.setattr(tw, "build_info", lambda: build)
    described = tilewise.info.collect()["tilewise"]
    assert (described["nvcc"], described["targets"]) == ("none", "none: this build is for CPUs only")


def test_it_says_when_a_build_has_names_of_kernels_without_code(monkeypatch):
    import tilewise.info

    build = tw.build_info()
    for emulated in (False, True):
        monkeypatch.setattr(tw, "build_info", lambda emulated=emulated: {**build, "emulated": emulated})
        assert ("by name only" in tilewise.info.collect()["tilewise"]["targets"]) == emulated
