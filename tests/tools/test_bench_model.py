"""python -m tilewise.bench.model: its table and file, and that a block that is wrong is no figure."""

import json

import pytest

torch = pytest.importorskip("torch")

from tilewise.bench import blocks, model
from tilewise.bench.timing import Timings

QUICK = ["--device", "cpu", "--ways", "eager", "--only", "decode"]


def test_a_step_of_each_library_is_timed(capsys, tmp_path):
    assert model.main([*QUICK, "--json", str(tmp_path / "times.json")]) == 0
    found = json.loads((tmp_path / "times.json").read_text())
    assert list(found) == ["decode 1, d256"]
    assert found["decode 1, d256"].keys() == {"torch eager", "tilewise eager"}
    assert all(time > 0 for time in found["decode 1, d256"].values())
    printed = capsys.readouterr().out
    assert "decode 1, d256" in printed
    assert "tilewise eager" in printed


def test_a_time_that_may_be_chance_is_no_figure(capsys, monkeypatch):
    times = Timings(
        {"torch eager": 0.015, "tilewise eager": 0.2}, noise={"torch eager": 0.1, "tilewise eager": 0.6}
    )
    monkeypatch.setattr(model, "measure", lambda *_: times)
    monkeypatch.setattr(model, "busy", lambda: "warning: other processes use this CPU")
    assert model.main(QUICK) == 0
    printed = capsys.readouterr()
    assert "15 us" in printed.out
    assert "200 us" not in printed.out
    assert "noise: more than a quarter of a time may be chance" in printed.out
    assert "other processes use this CPU" in printed.err


def test_a_block_that_is_wrong_is_no_figure(capsys, monkeypatch):
    wrong = blocks.LIBRARIES["tilewise"]._replace(plus=lambda layer, x, residual: 2 * residual + layer(x))
    monkeypatch.setitem(blocks.LIBRARIES, "tilewise", wrong)
    assert model.main(QUICK) == 1
    assert "tilewise, eager is off by" in capsys.readouterr().err


@pytest.mark.parametrize("case", model.ON_CPU, ids=str)
def test_gradients_of_both_blocks_agree(case):
    torch.manual_seed(0)
    x = torch.randn(case.batch, case.tokens, case.width)
    both = list(blocks.blocks_of(case).values())
    both[1].load_state_dict(both[0].state_dict())
    case_gradients = []
    for block in both:
        block.requires_grad_()
        block(x).square().sum().backward()
        case_gradients.append({name: p.grad for name, p in block.named_parameters()})
    torch.testing.assert_close(*case_gradients, rtol=1e-3, atol=1e-2)


def test_ways_that_do_not_exist_are_refused(capsys):
    with pytest.raises(SystemExit):
        model.main(["--ways", "eager,quick"])
    assert "quick is not known; accepted: eager, compiled" in capsys.readouterr().err


def test_a_device_or_case_that_is_not_there_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(model.torch.cuda, "is_available", lambda: False)
    for arguments, words in (
        (["--device", "cuda"], "torch sees no CUDA device"),
        (["--device", "cpu", "--only", "zzz"], "no case contains 'zzz'"),
    ):
        with pytest.raises(SystemExit):
            model.main(arguments)
        assert words in capsys.readouterr().err
