"""Names of kernels, files and options, and explain's labels, are the field's words: docs/glossary.md."""

import itertools
import re
from pathlib import Path

import pytest
import tilewise as tw
import torch
from support.planning import GPUS, meta
from tilewise import _core

ROOT = Path(__file__).resolve().parents[2]
# Words of earlier days, for which the field has others.
RETIRED = {
    *(
        "turned",
        "leave",
        "leaves",
        "find",
        "finds",
        "meet",
        "meets",
        "met",
        "meeting",
        "lone",
        "held",
        "kept",
    ),
    *(
        "granule",
        "granules",
        "chunk",
        "chunks",
        "slot",
        "slots",
        "piece",
        "pieces",
        "panel",
        "panels",
        "trips",
    ),
    *(
        "ragged",
        "shifted",
        "skewed",
        "staged",
        "finish",
        "simple",
        "rehearsal",
        "figure",
        "figures",
        "forget",
    ),
    *("letter", "mail", "lender", "movable", "recurring"),
}


def retired(names):
    """The names of which a word is retired."""
    return sorted(name for name in names if RETIRED & set(re.split(r"[^a-z]+", name.lower())))


def test_a_retired_word_is_seen():
    assert retired(["softmax_panel8_bf16", "split panel", "splits", "matmul_meet", "softmax"]) == [
        "matmul_meet",
        "softmax_panel8_bf16",
        "split panel",
    ]


def test_kernels():
    kernels = _core.build_info()["kernels"]
    if not kernels:
        pytest.skip("this build has no kernels")
    assert not retired({kernel[key] for kernel in kernels for key in ("kernel", "file")})


def test_files():
    if not (ROOT / "kernels").exists():
        pytest.skip("no checkout")
    files = [path.name for folder in ("kernels", "src") for path in (ROOT / folder).rglob("*.*")]
    assert len(files) > 150
    assert not retired(files)


def test_options():
    variants = itertools.chain(*_core.variants().values())
    texts = {text for entry in variants for text in (entry["name"], entry.get("parameter", ""))}
    assert len(texts) > 15
    assert not retired(texts)


def problems():
    for dtype, (m, n) in itertools.product(
        (torch.bfloat16, torch.float32, torch.float64),
        ((1, 7), (3, 200_000), (64, 4096), (300, 33), (4096, 1000), (70_000, 48), (2, 5_000_000)),
    ):
        x = meta(m, n, dtype=dtype)
        apart = meta(m, n + 3, dtype=dtype)[:, 1:-2]
        for view in (x, apart, meta(n, m, dtype=dtype).T):
            yield "add", (view, x)
            yield "add", (view, 2)
            for dim in (0, 1):
                yield "softmax", (view, dim)
                yield "softmax_backward", (view, x, dim)
            yield "activation_backward", (view, x, "relu")
            yield "matmul", (view, meta(n, 256, dtype=dtype))
            yield "matmul", (view, meta(64, n, dtype=dtype).T)


@pytest.mark.parametrize("gpu", GPUS)
def test_labels_of_explain(gpu):
    labels, settings = set(), set()
    for op, args in problems():
        explained = tw.explain(op, *args, device=gpu)
        for launch in explained.launches:
            settings |= set(launch.settings)
            labels |= {launch.kernel, launch.file, *launch.settings}
        for reason in explained.why:
            labels |= {reason.chosen, reason.over or "", *reason.metrics}
    assert len(labels) > 50
    assert not retired(labels)
    page = (ROOT / "docs/api_explain.md").read_text()
    assert not {name for name in settings if f"`{name}`" not in page}
