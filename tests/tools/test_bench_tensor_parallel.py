"""python -m tilewise.bench.tensor_parallel: its table and file, and that a wrong layer is no figure."""

import json

import pytest

torch = pytest.importorskip("torch")

import tilewise as tw
from tilewise.bench import tensor_parallel


def test_a_pass_of_each_library_is_timed(capfd, tmp_path):
    quick = ["--device", "cpu", "--batches", "1", "--json", str(tmp_path / "times.json")]
    assert tensor_parallel.main(quick) == 0
    found = json.loads((tmp_path / "times.json").read_text())
    assert list(found) == [str(case) for case in tensor_parallel.ON_CPU]
    for times in found.values():
        assert times.keys() == {"torch", "tilewise"}
        assert all(len(of_it) == 1 and of_it[0] > 0 for of_it in times.values())
    assert "1 process(es), gloo" in capfd.readouterr().out


def test_a_result_that_is_wrong_is_no_figure():
    case, x = tensor_parallel.ON_CPU[0], torch.randn(4, 16)
    tensor_parallel.compare(case, [x], [x.clone()])
    with pytest.raises(RuntimeError, match="16-32, 4 tokens, without gradients: off by"):
        tensor_parallel.compare(case, [x], [tw.add(x, x)])
