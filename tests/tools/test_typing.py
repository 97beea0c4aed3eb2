"""mypy and pyright accept right calls and refuse wrong ones, on the line where they are wrong."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("numpy", "torch", "scipy"):
    pytest.importorskip(package)

import tilewise

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/typed_calls.py"

PRELUDE = """\
import numpy as np
import tilewise as tw
import torch
from numpy.typing import NDArray
from tilewise.latency import fit_tpot

x: NDArray[np.float32] = np.ones((2, 3), dtype=np.float32)
t: torch.Tensor = torch.ones(2, 3)
m = fit_tpot([1, 2, 4], [1.0, 2.0, 3.1])
"""

RIGHT = [
    "assert_type(tw.add(x, 1), NDArray[np.float32])",
    "assert_type(tw.add(x, np.float32(2)), NDArray[np.float32])",
    "assert_type(tw.add(2.0, t), torch.Tensor)",
    "assert_type(tw.add(2, x), NDArray[np.float32])",
    "tw.torch.Linear(3, 4, activation='relu')(t)",
    "assert_type(tw.add(t, t, alpha=2, out=t), torch.Tensor)",
    "assert_type(tw.grouped_matmul(t, t, t), torch.Tensor)",
    "assert_type(tw.grouped_matmul([t], [t]), list[torch.Tensor])",
    "assert_type(tw.softmax(t, -2, dtype=torch.float32), torch.Tensor)",
    "assert_type(tw.softmax(x, np.int64(1), dtype='float32'), NDArray[np.float32])",
    "assert_type(tw.matmul(x, x.T, activation='gelu', precision='tf32'), NDArray[np.float32])",
    "assert_type(m.predict(3.0), float)",
    "assert_type(tw.info(), str)",
]
WRONG = {
    "an activation that is not known": "tw.matmul(x, x, activation='swish')",
    "a precision that is not known": "tw.matmul(x, x, precision='float16')",
    "a keyword that is not known": "tw.softmax(x, axis=1)",
    "a keyword given by position": "tw.softmax(x, 1, 'float32')",
    "bias given by position": "tw.matmul(x, x, x)",
    "a dim that is no integer": "tw.softmax(x, dim=1.5)",
    "a number as text": "tw.add(x, x, alpha='2')",
    "no second operand": "tw.matmul(x)",
    "a list for an array": "tw.softmax([1.0, 2.0])",
    "a number for a matrix": "tw.matmul(x, 3)",
    "out that is no array": "tw.softmax(x, out=3)",
    "a result taken for another library's": "wrong: torch.Tensor = tw.softmax(x)",
    "a plan taken for granted": "print(tw.explain(tw.add, x, 1).plan.grid)",
    "a prediction from text": "m.predict('8')",
    "a function that does not exist": "tw.multiply(x, x)",
}


def package_root():
    """Where a checker looks for tilewise; None if it is among the interpreter's own packages."""
    root = Path(tilewise.__file__).parents[1]
    return None if root.name == "site-packages" else root


def mypy(files, folder):
    """Lines with an error, by file name."""
    pytest.importorskip("mypy")
    config = folder / "mypy.ini"
    # Of tilewise itself, make lint has its own run; all of torch takes three times as long as its tensors.
    config.write_text("""\
[mypy]
strict = true
[mypy-tilewise.*]
follow_imports = silent
[mypy-torch.*]
follow_imports = skip
[mypy-torch,torch._C,torch._tensor]
follow_imports = normal
""")
    options = ["--config-file", config, "--cache-dir", folder / "cache", "--no-pretty"]
    # In a process of its own, which ends without freeing all that it knows of torch.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files],
        env={**os.environ, "MYPYPATH": str(package_root() or "")},
        capture_output=True,
        text=True,
    )
    assert not done.stderr, done.stderr
    return errors_by_file(re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE))


def pyright(files, folder):
    pytest.importorskip("pyright")
    config = {
        "include": ["."],
        "typeCheckingMode": "strict",
        "extraPaths": [str(package_root())] if package_root() else [],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = ["-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(files)
    return errors_by_file(
        (d["file"], d["range"]["start"]["line"] + 1, d["message"])
        for d in found["generalDiagnostics"]
        if d["severity"] == "error"
    )


def errors_by_file(errors):
    found = {}
    for file, line, message in errors:
        found.setdefault(Path(file).name, {}).setdefault(int(line), []).append(message)
    return found


@pytest.fixture(scope="module", params=[mypy, pyright], ids=lambda checker: checker.__name__)
def found(request, tmp_path_factory):
    """What a checker says of the example, the right calls and the wrong ones, in one run."""
    folder = tmp_path_factory.mktemp(request.param.__name__)
    contents = {
        "example.py": EXAMPLE.read_text(),
        "right.py": "from typing_extensions import assert_type\n" + PRELUDE + "\n".join(RIGHT) + "\n",
        "wrong.py": PRELUDE + "\n".join(WRONG.values()) + "\n",
    }
    for name, text in contents.items():
        (folder / name).write_text(text)
    return request.param([folder / name for name in contents], folder)


def test_the_example_passes(found):
    assert found.get("example.py", {}) == {}


def test_right_calls_pass_with_the_types_they_say(found):
    assert found.get("right.py", {}) == {}


def test_each_wrong_call_is_refused_and_nothing_else(found):
    first = PRELUDE.count("\n") + 1
    lines = {first + i: why for i, why in enumerate(WRONG)}
    wrong = found.get("wrong.py", {})
    assert [why for line, why in lines.items() if line not in wrong] == []
    assert {line: said for line, said in wrong.items() if line not in lines} == {}


def test_the_example_runs():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "blocks on an H200: " in done.stdout
    assert "do not fit" in done.stdout
