"""benchmarks/fit_matmul.py: a model is found again in times that it made, and prefers what was fastest."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")

from tilewise import _core

SCRIPT = Path(__file__).parents[2] / "benchmarks/fit_matmul.py"
SHAPES = [
    *((n, n, n) for n in (512, 1024, 2048, 4096, 8192)),
    (512, 14336, 4096),
    (4096, 2112, 7168),
    (8192, 8192, 64),
    (512, 512, 65536),
    (64, 4096, 4096),
    (1000, 1000, 1000),
    (3000, 3000, 3000),
]
TILES = ("64x64", "128x128", "128x192", "128x256", "256x128")
# Far enough from what is built in to change which plans are preferred.
OTHERWISE = {"128x256": 0.72, "256x128": 0.75, "128x192": 0.98, "128x128": 0.95}
OTHERWISE |= {"l2_bytes": 90.0, "lines": 1.5, "start": 5000.0}


@pytest.fixture(scope="module")
def fit_matmul():
    spec = importlib.util.spec_from_file_location("fit_matmul", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_matmul"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fit_matmul"]


@pytest.fixture
def record(fit_matmul):
    random = np.random.default_rng(0)
    rows = []
    for shape in SHAPES:
        works = [(tile, splits, cluster) for tile in TILES for splits in (1, 4) for cluster in ("1x1", "2x1")]
        # Both operands' rows are as long as k.
        off_lines = shape[2] % 64 != 0
        plans = [(*shape, *work, False, (off_lines, off_lines, False)) for work in works]
        times = np.array(_core.wgmma_clocks(plans, OTHERWISE)) / fit_matmul.CLOCK
        times *= np.exp(random.normal(0, 0.005, len(times)))
        us = {"torch": 1.0, "chosen": 1.0}
        for (tile, splits, cluster), time in zip(works, times, strict=True):
            us[f"{tile} splits {splits} cluster {cluster}"] = float(time)
        rows.append({"shape": shape, "layout": "nt", "us": us})
    # Not a plan's time alone: operands were copied first.
    rows.append({"shape": (513, 513, 513), "layout": "nt", "us": {"64x64 splits 1 cluster 1x1": 1e6}})
    return {"rows": rows}


def test_a_model_is_found_again(fit_matmul, record):
    sweep = fit_matmul.Sweep.read(record)
    assert len(sweep.plans) == len(SHAPES) * len(TILES) * 4
    mean_before, worst_before = fit_matmul.mean_and_worst(sweep.regrets({}))
    fitted = fit_matmul.fit(sweep)
    mean, worst = fit_matmul.mean_and_worst(sweep.regrets(fitted))
    assert mean_before > 1.03
    assert mean < 1.01
    assert worst < min(1.05, worst_before)
    for name in ("256x128", "128x192"):
        assert fitted[name] / fitted["128x256"] == pytest.approx(
            OTHERWISE[name] / OTHERWISE["128x256"], rel=0.05
        )


def test_the_command_prints_constants_and_regrets(fit_matmul, record, tmp_path, capsys, monkeypatch):
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(record))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(path)])
    assert fit_matmul.main() == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in _core.wgmma_model())
    assert "as built: " in printed
    assert "fitted: " in printed


def test_what_the_model_does_not_know_is_refused():
    plan = (8, 8, 8, "128x128", 1, "1x1", False, (False, False, True))
    with pytest.raises(ValueError, match="128x130"):
        _core.wgmma_clocks([(*plan[:3], "128x130", *plan[4:])], {})
    with pytest.raises(ValueError, match="l3_bytes"):
        _core.wgmma_clocks([plan], {"l3_bytes": 1.0})
