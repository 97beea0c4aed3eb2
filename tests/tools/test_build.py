"""Which GPUs `make` builds a wheel for, and that the kernels as they are compile for every GPU."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tilewise.bench.record import KERNEL_SOURCES, digest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or not (ROOT / "Makefile").exists(), reason="no make, or no Makefile"
)


@pytest.fixture
def printed(tmp_path):
    """What make would run for a target: with these GPUs, and this environment."""

    def run(target, gpus=None, asked=None):
        told = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."
        answer = told if gpus is None else "\n".join(gpus)
        smi = tmp_path / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        smi.chmod(0o755)
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "TILEWISE_CUDA_TARGETS")}
        environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
        if asked is not None:
            environment["TILEWISE_CUDA_TARGETS"] = asked
        # Into a folder of its own, where nothing is built yet.
        command = ["make", "-n", f"VENV={tmp_path}/venv", f"WHEELS={tmp_path}/wheels", target]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def planned(printed):
    """What it would build a wheel for, and the wheel's folder."""

    def plan(*args):
        builds = re.compile(r"TILEWISE_CUDA_TARGETS='([^']*)' CARGO_ZIG.*?--out \S+/wheels/(\S+)", re.DOTALL)
        found = set(builds.findall(printed(*args)))
        assert len(found) == 1, found
        return found.pop()

    return plan


@pytest.mark.parametrize(
    ("gpus", "built"),
    [
        (None, ("none", "none")),
        ([], ("none", "none")),
        (["[N/A]"], ("none", "none")),
        (["9.0"], ("90", "90")),
        (["9.0", "8.6", "9.0"], ("86 90", "86-90")),
        (["12.0"], ("120", "120")),
    ],
)
def test_the_demo_is_built_for_the_gpus_that_are_here(planned, gpus, built):
    assert planned("demo", gpus) == built


@pytest.mark.parametrize("target", ["kernels", "wheel"])
def test_a_wheel_is_built_for_all(planned, target):
    assert planned(target, ["9.0"]) == ("all", "all")


def test_what_is_recorded_is_built_for_all_whatever_the_environment_says(planned):
    assert planned("kernels", ["9.0"], "none") == ("all", "all")


@pytest.mark.parametrize("asked", [None, "none", "8.0"])
def test_what_is_tested_is_built_for_the_gpus_that_are_here_and_for_the_emulator(planned, asked):
    assert planned("test", None, asked) == ("emulated", "emulated")
    assert planned("test", ["9.0", "8.6"], asked) == ("86 90 emulated", "86-90-emulated")


@pytest.mark.parametrize("target", ["demo", "kernels", "wheel"])
def test_only_what_is_tested_is_built_for_this_cpu(printed, target):
    one_cpu = re.compile(r"target-cpu|--no-default-features")
    assert not one_cpu.search(printed(target, ["9.0"]))
    # Whatever this machine is, it has either AVX-512 or no use for loops of it.
    assert one_cpu.search(printed("test", ["9.0"]))


@pytest.mark.parametrize(("target", "command"), [("lint-rust", "clippy"), ("test-rust", "test")])
def test_cargo_compiles_no_other_kernels_for_its_checks(printed, target, command):
    assert f"TILEWISE_CUDA_TARGETS='emulated' cargo {command} " in printed(target)


def test_the_kernels_as_they_are_were_compiled_for_every_gpu():
    pytest.importorskip("pygments")
    recorded = re.search(r"^# digest (\w+)$", (ROOT / "kernels/resources.txt").read_text(), re.MULTILINE)
    assert recorded
    assert recorded[1] == digest(ROOT, KERNEL_SOURCES), "run `make kernels`"


@pytest.mark.parametrize("target", ["demo", "wheel"])
@pytest.mark.parametrize(
    ("asked", "built"),
    [
        ("all", ("all", "all")),
        ("none", ("none", "none")),
        ("native", ("90", "90")),
        ("8.6,9.0", ("86 90", "86-90")),
        ("90 8.6", ("86 90", "86-90")),
    ],
)
def test_the_environment_says_what_else_to_build_for(planned, target, asked, built):
    assert planned(target, ["9.0"], asked) == built
