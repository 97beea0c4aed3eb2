"""The demo is right on every device present, and says so when it is not."""

import itertools
import os
import re

import pytest

torch = pytest.importorskip("torch")

import tilewise as tw
from tilewise import demo
from tilewise.bench import timing

rows = demo.rows


def test_every_row_is_right(capsys):
    assert demo.main([]) == 0
    printed = capsys.readouterr()
    assert "WRONG" not in printed.out
    assert re.search(r"^(\d+) of \1 passed", printed.out, re.MULTILINE)
    assert not printed.err


def test_a_busy_machine_is_told_of_and_has_no_ratios(monkeypatch, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 0.0, 0.0))
    monkeypatch.setattr(timing, "waited", iter(range(10**6)).__next__)
    monkeypatch.setattr(demo, "rows", lambda device: itertools.islice(rows(device), 2))
    assert demo.main([]) == 0
    printed = capsys.readouterr().out
    if not torch.cuda.is_available():
        assert "warning: other processes use this CPU (load 64.0" in printed
        # Of each row, and what the word means.
        assert printed.count("noise") == 2 + 1


def test_a_wrong_row_is_named_and_fails_the_demo(monkeypatch, capsys):
    right = tw.softmax

    def wrong(x, dim, dtype=None):
        result = right(x, dim, dtype=dtype)
        return result if dim == -1 else result + 1

    monkeypatch.setattr(tw, "softmax", wrong)
    few = lambda device: (row for row in rows(device) if "softmax: bfloat16" in row.name)  # noqa: E731
    monkeypatch.setattr(demo, "rows", few)
    assert demo.main([]) == 1
    printed = capsys.readouterr()
    assert "softmax: bfloat16 over dim 0: WRONG" in printed.err
    assert "every other column" not in printed.err


def test_an_exception_is_a_row_like_any_other(monkeypatch, capsys):
    def broken(a, b, **options):
        raise tw.UnsupportedError("not today")

    monkeypatch.setattr(tw, "matmul", broken)
    few = lambda device: (row for row in rows(device) if "matmul: bfloat16" in row.name)  # noqa: E731
    monkeypatch.setattr(demo, "rows", few)
    assert demo.main([]) == 1
    printed = capsys.readouterr()
    assert "RAISED" in printed.out
    assert "UnsupportedError: not today" in printed.err


def test_what_it_does_not_know_is_refused(capsys):
    for arguments, code in ((["--help"], 0), (["--device", "cpu"], 2), (["add"], 2)):
        with pytest.raises(SystemExit) as left:
            demo.main(arguments)
        assert left.value.code == code
    assert "unrecognized arguments: add" in capsys.readouterr().err


def test_a_gpu_that_is_refused_is_told_and_the_cpu_takes_its_place(monkeypatch, capsys):
    def refuses(x, y):
        raise tw.DeviceError("add: cuda:0 has compute capability 9.0, for which there are no kernels")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: None)
    monkeypatch.setattr(tw, "add", refuses)
    assert demo.best_device() == torch.device("cpu")
    assert "for which there are no kernels" in capsys.readouterr().err
    monkeypatch.setattr(tw, "add", lambda x, y: None)
    assert demo.best_device() == torch.device("cuda", 0)
    assert not capsys.readouterr().err
