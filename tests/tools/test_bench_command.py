"""What the benchmark's options do: cases of one's own, files, comparisons, an early end."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from support import fresh
from support.bench_run import FACTS, whole_run
from tilewise.bench import __main__ as bench
from tilewise.bench import cases, command, measure, options, peers, record, report, timing
from tilewise.bench.record import Ceilings, Run


@pytest.fixture
def kept(tmp_path):
    """A file with a run, as --json writes it."""

    def keep(run, name="run.json"):
        (tmp_path / name).write_text(json.dumps(run.as_json()))
        return tmp_path / name

    return keep


def chosen(*words, device="cpu"):
    return measure.choose(options.parse(list(words)), device)


def test_cases_of_ones_own():
    found = chosen(
        "matmul",
        "--shape",
        "64x32x16",
        "--shape",
        "2^6x64x64",
        "--dtype",
        "float32,bfloat16",
        "--layout",
        "nt,tn",
    )
    names = [(case.name, case.dtype) for case in found]
    assert names == [
        (f"{shape} {layout}", dtype)
        for dtype in ("float32", "bfloat16")
        for layout in ("nt", "tn")
        for shape in ("64x32x16", "64^3")
    ]
    call = found[0].build(torch.device("cpu"))
    assert [tuple(x.shape) for x in call.args] == [(64, 16), (16, 32)]
    assert [x.is_contiguous() for x in call.args] == [True, False]
    tf32 = chosen("matmul", "--shape", "8x8x8", "--dtype", "float32,bfloat16", "--precision", "tf32")
    assert [(case.name, case.dtype) for case in tf32] == [("8^3 nn tf32", "float32"), ("8^3 nn", "bfloat16")]


@pytest.mark.parametrize("op", options.OPERATIONS[:-1])
def test_every_layout_is_what_its_name_says(op):
    shape = (3, 6, 4, 8) if op == "grouped" else (6, 4, 8)
    for layout in cases.LAYOUTS[op]:
        call = cases.case_of(op, shape, "float32", layout).build(torch.device("cpu"))
        assert call.worst_error(call.by_torch()(), call.reference()) <= 1
        views = [x for x in call.args if torch.is_tensor(x)]
        if op not in ("matmul", "grouped"):
            assert views[0].numel() == 6 * 4 * 8
        of_layout = views[-1] if op == "add" else views[0]
        if layout == "transposed":
            assert of_layout.mT.is_contiguous()
        if layout == "column slice":
            assert of_layout.stride() == (4 * 72, 72, 1)
        if layout == "odd slice":
            assert (of_layout.stride(), of_layout.storage_offset()) == ((4 * 11, 11, 1), 1)


def test_names_are_those_of_the_catalogue():
    catalogue = {
        (c.op, c.name, c.dtype) for op in options.OPERATIONS[:-1] for c in cases.cases(op, "cuda", False)
    }
    for op, shape, layout, dim in [
        ("add", (1 << 20,), None, -1),
        ("add", (8192, 8192), "column slice", -1),
        ("softmax", (32768, 781), None, -1),
        ("softmax", (8192, 8192), None, 0),
        ("softmax", (16384, 8192), "column slice", -1),
        ("softmax_backward", (32768, 8192), None, -1),
        ("log_softmax_backward", (16384, 8192), "odd slice", -1),
        ("activation_backward", (4096, 14336), None, -1),
        ("matmul", (4096, 4096, 4096), "tt", -1),
        ("matmul", (16, 4096, 4096), "nt", -1),
        ("grouped", (64, 8192, 1408, 2048), "nt", -1),
    ]:
        case = cases.case_of(op, shape, "bfloat16", layout, dim)
        assert (case.op, case.name, case.dtype) in catalogue


def test_a_dtype_chooses_among_the_cases():
    assert {case.dtype for case in chosen("softmax", "--dtype", "bfloat16")} == {"bfloat16"}
    assert len(chosen("softmax", "--dtype", "bfloat16,float16,float32")) == len(chosen("softmax"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--from", "kept.json", "add"], "as it is"),
        (["--from", "kept.json", "--dtype", "float32"], "as it is"),
        (["--date", "2026-02-30"], "day is out of range"),
        (["matmul", "--precision", "tf32"], "need --shape"),
    ],
)
def test_words_that_would_do_nothing_are_refused(words, why, capsys):
    with pytest.raises(SystemExit) as exit_:
        bench.main(words)
    assert exit_.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["matmul", "--shape", "64x64"], "MxNxK"),
        (["matmul", "--shape", "8x8x8", "--layout", "transposed"], "no layout 'transposed'"),
        (["softmax", "--shape", "8x8", "--dim", "2"], "no dim 2"),
        (["softmax", "--shape", "8", "--layout", "transposed"], "two dimensions"),
        (["add", "--only", "nothing like it"], "no case contains"),
        (["softmax", "--variants", "softmax:smem:4"], "--variants are kernels of GPUs"),
        (["overhead", "--dtype", "float64"], "no case has such a dtype"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(words, why, capsys):
    assert bench.main(["--device", "cpu", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["all", "--shape", "8x8"], "--shape: name the operations"),
        (["add", "--layout", "row"], "--layout, --dim and --precision need --shape"),
        (["softmax", "--dim", "0"], "--layout, --dim and --precision need --shape"),
        (["add", "--shape", "8x8", "--precision", "tf32"], "--precision is of matmul only"),
        (["matmul", "--shape", "8x8x8", "--dim", "1"], "--dim is of softmax and its gradient only"),
        (["add", "--dtype", "int3"], "int3 is not known; accepted: float16"),
        (["add", "--shape", "8x8", "--only", "8"], "--only selects from the built-in cases"),
        (["add", "--shape", "2^40x2"], "'2^40x2' has more than 2^40 elements"),
        *(
            (["add", "--shape", text], "is not a shape")
            for text in ("", "8x", "0x4", "-1", "axb", "2^-1", "2^2^2^99")
        ),
    ],
)
def test_a_command_line_that_makes_no_sense(words, why, capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main(words)
    assert caught.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "place", "why"),
    [
        *((option, "none/x.png", "there is no folder none") for option in ("--json", "--csv", "--plot")),
        *((option, ".", "is a folder") for option in ("--json", "--csv")),
        ("--plot", "x.pgn", "the file's ending must be one of .png, .svg, .pdf"),
        ("--record", "file/kept", "file is not a folder"),
        ("--json", "locked/x.json", "locked is not writable"),
        ("--record", "locked/kept", "locked is not writable"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    option, place, why, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: "locked" not in str(path))  # root may write anywhere
    monkeypatch.setattr(measure, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit) as caught:
        bench.main(["add", "--device", "cpu", "--quick", option, place])
    assert caught.value.code == 2
    printed = capsys.readouterr().err
    assert f"argument {option}" in printed
    assert why in printed


def test_two_files_of_one_name_are_refused(capsys):
    with pytest.raises(SystemExit):
        bench.main(["add", "--json", "x.txt", "--csv", "./x.txt"])
    assert "name a file for each" in capsys.readouterr().err


def test_a_file_that_fails_after_all_does_not_lose_the_others(kept, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "as_csv", full)
    good = Run(dict(FACTS), Ceilings(1, {}), whole_run().of("add"))
    picture = tmp_path / "x.png"
    words = ["--from", str(kept(good)), "--csv", str(tmp_path / "x.csv"), "--plot", str(picture)]
    assert bench.main(words) == 2
    assert "not written: [Errno 28] No space left" in capsys.readouterr().err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_of_a_record_gives_the_same_options():
    words = (
        "matmul softmax --device cpu --shape 8x8x8 --shape 4x4x4 --dtype float32 --layout contiguous --dim 0 "
        "--precision tf32"
    )
    parsed = options.parse([*words.split(), "--peers", "torch", "--json", "x"])
    again = options.parse(options.command(parsed).split()[3:])
    assert {**vars(parsed), "json": None} == vars(again)


def test_peers_of_the_quick_cases_alone():
    words = ["matmul", "softmax", "--device", "cpu", "--peers", "torch,compile,upcast"]
    options_ = options.parse([*words, "--quick-peers", "upcast,compile:matmul"])
    assert options.command(options_).endswith("--quick-peers upcast,compile:matmul")
    found = measure.peers_of(options_, measure.choose(options_, "cpu"), "cpu")
    by_name = {(case.op, case.name, case.dtype): names for case, names in found.items()}
    assert by_name["matmul", "64^3 nn", "bfloat16"] == ("torch", "compile", "upcast")
    assert by_name["matmul", "128^3 nn", "bfloat16"] == ("torch",)
    assert by_name["softmax", "64x50257", "float32"] == ("torch", "compile")


@pytest.mark.parametrize(
    "words", ["--quick-peers somebody", "--quick-peers torch:mul", "--jobs 0", "--jobs x"]
)
def test_peers_and_numbers_that_there_are_not(words, capsys):
    with pytest.raises(SystemExit):
        options.parse(words.split())
    assert words.split()[1] in capsys.readouterr().err


def test_grouped_matmul_is_known_by_its_name_too():
    assert options.parse(["grouped_matmul"]).operations == ["grouped"]


def test_peers_are_compiled_in_other_processes(capsys, monkeypatch):
    # Here, where it would take as long again, nothing is compiled.
    monkeypatch.setitem(peers._PEERS, "compile", lambda call: None)
    words = ["add", "--device", "cpu", "--quick", "--shape", "5", "--peers", "torch,compile"]
    assert bench.main([*words, "--jobs", "2"]) == 0
    assert re.search(r"^compiled beforehand, in \d+ s: compile in 1 cases$", capsys.readouterr().out, re.M)


def test_measures_shapes_and_writes_csv(tmp_path, capsys):
    file = tmp_path / "times.csv"
    words = ["matmul", "--device", "cpu", "--quick", "--shape", "8x8x8", "--csv", str(file)]
    assert bench.main(words) == 0
    found = list(csv.DictReader(file.open()))
    assert [row["who"] for row in found] == ["tilewise", "torch"]
    assert all(float(row["milliseconds"]) > 0 and row["case"] == "8^3 nn" for row in found)
    assert "8^3 nn" in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_terminal_folds_names_and_headings_but_no_figure(width):
    console = pytest.importorskip("rich.console").Console(width=width, file=io.StringIO())
    columns, rows = report.rows(whole_run().of("matmul"))
    name = "an uncommonly long name of a case, transposed"
    rows = [[name, *cells[1:]] for cells in rows if cells[2] != "FAILED"]
    console.print(report.rich_table("matmul", columns, rows, width, report.LEFT))
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    for figure in (figure for cells in rows for figure in cells[1:]):
        assert figure in printed
    assert (name in printed) == (width == 200)


def test_on_a_terminal_too_narrow_for_figures_nothing_is_cut_off():
    console = pytest.importorskip("rich.console").Console(width=40, file=io.StringIO())
    columns, rows = ["case", *"abcd"], [["x", *["123456789"] * 4]]
    console.print(report.rich_table("title", columns, rows, 40))
    assert sorted("".join(console.file.getvalue().split())) == sorted("titlecaseabcdx" + "123456789" * 4)


def test_overhead_is_timed_on_the_host_and_told_by_part(tmp_path, capsys, device):
    if device == "cuda:1":
        pytest.skip("the benchmark is of the current GPU")
    file = tmp_path / "overhead.json"
    words = ["overhead", "--device", device, "--quick", "--peers", "torch", "--json", str(file)]
    assert bench.main(words) == 0
    run = record.load(file)
    operations = ("add", "softmax", "matmul")
    assert len(run.measurements) == 5 * len(operations) + 1
    assert "copy" not in run.measurements[0].milliseconds
    assert {(p.op, p.who) for p in report.parts(run.measurements)} == {
        (op, who) for op in operations for who in ("tilewise", "torch")
    }
    assert "overhead by part" in capsys.readouterr().out


def test_parts_are_the_differences_between_cases():
    (ours, theirs, *_) = report.parts(whole_run().of("overhead"))
    assert (ours.op, ours.who, theirs.who) == ("add", "tilewise", "torch")
    assert (ours.arguments, ours.result, ours.launch, ours.whole) == pytest.approx((1.5e-3, 5e-4, 1e-3, 3e-3))
    assert ours.row == ["add", "tilewise", "1.50 us", "0.50 us", "1.00 us", "3.00 us"]


def test_a_batch_of_host_calls_is_divided_by_its_size():
    clock, calls = timing.HostClock(torch.device("cpu")), []
    clock.sample(lambda: calls.append(1), 2)
    assert len(calls) == 2 * clock.BATCH


def test_a_busy_machine_is_warned_of(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 9, 9))
    assert measure.busy() is None
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0, 0))
    assert "load 3.0 on 4 cores" in measure.busy()


def test_ctrl_c_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    real, seen = measure.measure_case, []

    def second_is_interrupted(case, *rest):
        seen.append(case)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(case, *rest)

    monkeypatch.setattr(measure, "measure_case", second_is_interrupted)
    file = tmp_path / "part.json"
    words = [
        "add",
        "--device",
        "cpu",
        "--quick",
        "--only",
        "contiguous",
        "--json",
        str(file),
        "--record",
        str(tmp_path / "no"),
    ]
    assert bench.main(words) == 130
    printed = capsys.readouterr()
    (of_all,) = re.findall(r"interrupted: (1 of \d+ cases were measured)", printed.err)
    assert seen[0].name in printed.out
    run = record.load(file)
    assert [m.case for m in run.measurements] == [seen[0].name]
    assert run.facts["interrupted"] == of_all
    assert not (tmp_path / "no").exists()


def test_ctrl_c_before_the_first_case(tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "ceilings", interrupted)
    file = tmp_path / "part.json"
    assert bench.main(["add", "--device", "cpu", "--json", str(file)]) == 130
    assert "interrupted: 0 of" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("module", ["tilewise.bench.record", "tilewise.bench.measure"])
def test_ctrl_c_while_modules_are_imported(module):
    fresh.run(f"""
        import contextlib, io, sys

        class CtrlC:
            def find_spec(self, name, path, target=None):
                if name == {module!r}:
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, CtrlC())
        from tilewise.bench import __main__ as bench
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            assert bench.main(["add", "--device", "cpu"]) == 130
        assert printed.getvalue() == "interrupted: nothing was measured\\n"
    """)


def test_ctrl_c_that_an_import_would_keep_to_itself():
    code = """
import os, signal, sys, time

class Torch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            except KeyboardInterrupt:
                raise ImportError("numpy._core")

sys.meta_path.insert(0, Torch())
from tilewise.bench import __main__ as bench
sys.exit(bench.main(["add", "--device", "cpu"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted: nothing was measured\n")


def test_ctrl_c_while_files_are_written(kept, monkeypatch, tmp_path, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "as_csv", interrupted)
    assert bench.main(["--from", str(kept(whole_run())), "--csv", str(tmp_path / "x.csv")]) == 130
    assert "interrupted: not every file was written" in capsys.readouterr().err


def test_a_file_gives_its_figures_back(kept, tmp_path, capsys):
    file, again = kept(whole_run()), tmp_path / "again.json"
    assert bench.main(["--from", str(file), "--json", str(again)]) == 1  # one of its cases failed
    assert record.load(again) == record.load(file)
    printed = capsys.readouterr()
    assert "32768x1024" in printed.out
    assert "out of luck" in printed.err


def test_a_file_needs_no_torch(kept, tmp_path):
    file = kept(Run(dict(FACTS), Ceilings(1, {}), whole_run().of("add")))
    fresh.run(f"""
        import sys
        sys.modules["torch"] = None
        from tilewise.bench import __main__ as bench
        assert bench.main(["--from", {str(file)!r}, "--csv", {str(tmp_path / "x.csv")!r}]) == 0
    """)


def test_without_what_the_extra_brings_it_measures_and_has_no_digest(kept, tmp_path):
    fresh.run(f"""
        import json, sys
        sys.modules["pygments"] = sys.modules["rich"] = None
        from tilewise.bench import __main__ as bench
        words = ["add", "--device", "cpu", "--quick", "--only", "2^12 float32"]
        assert bench.main([*words, "--json", {str(tmp_path / "x.json")!r}]) == 0
        assert json.load(open({str(tmp_path / "x.json")!r}))["digest"] is None
        assert bench.main(["--check-record", {str(kept(whole_run()))!r}]) == 2
    """)


def test_a_ceiling_is_never_below_what_torch_reached():
    run = whole_run()
    best = max(m.rate("torch") for m in run.of("matmul") if "torch" in m.milliseconds)
    assert run.ceilings.flops_per_second["float32"] == pytest.approx(best)
    assert all(m.ratios["of matmul ceiling"] <= 1 for m in run.of("matmul") if m.ratios)


def test_a_comparison_names_what_has_become_slower(kept, capsys):
    words = ["--from", str(kept(whole_run(1.3))), "--compare", str(kept(whole_run(), "old.json"))]
    bench.main(words)
    printed = capsys.readouterr()
    assert "SLOWER: 5 of the" in printed.err
    lines = [line for line in printed.out.splitlines() if "SLOWER" in line]
    assert len(lines) == 5
    assert all("add contiguous" in line and "0.77x" in line and "1.00x" in line for line in lines)


def test_what_is_within_the_noise_is_not_slower():
    old, new, noisy = whole_run(), whole_run(1.04), whole_run(1.2)
    assert not any(c.slower or c.faster for c in command.changes(old, new))
    for m in noisy.of("add"):
        m.spread["tilewise"] = 0.1
    assert not any(c.slower for c in command.changes(old, noisy))
    for m in noisy.of("add"):
        m.spread["tilewise"], m.noise["tilewise"] = 0.0, 0.3
    for change in command.changes(old, noisy) + command.changes(noisy, old):
        assert change.is_noise == (change.op == "add")
        assert not change.slower
        assert not change.faster
    assert all(c.faster for c in command.changes(whole_run(1.3), old) if c.op == "add")


def test_runs_of_two_machines_are_not_compared(kept, capsys):
    other = whole_run()
    other.facts["device"] = "CPU"
    good = Run(dict(FACTS), Ceilings(1, {}), whole_run().of("add"))
    assert bench.main(["--from", str(kept(good)), "--compare", str(kept(other, "old.json"))]) == 2
    assert "not compared: that was a CPU, this is NVIDIA H200" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--compare", "--from"])
def test_a_file_that_is_no_run_is_refused(tmp_path, option, capsys):
    (tmp_path / "x.json").write_text('{"digest": ""}')
    assert bench.main([option, str(tmp_path / "x.json")]) == 2
    assert "not a record" in capsys.readouterr().err


def test_kernels_of_ours_as_peers(monkeypatch):
    words = [
        "softmax",
        "--shape",
        "4x9",
        "--peers",
        "torch",
        "--variants",
        "softmax:cluster:8,add:grid_stride",
    ]
    wanted = options.parse(words)
    assert options.command(wanted).endswith("--variants softmax:cluster:8,add:grid_stride")
    asked = []
    monkeypatch.setitem(peers._FORCE, "softmax", lambda *forced: asked.append(forced))
    call = chosen(*words)[0].build(torch.device("cpu"))
    found = peers.candidates(call, (*wanted.peers, *wanted.variants))
    assert list(found) == ["tilewise", "torch", "softmax:cluster:8"]
    torch.testing.assert_close(found["softmax:cluster:8"](), call.by_torch()())
    assert asked == [("cluster", 8), (None,)]


@pytest.mark.parametrize("name", ["softmax:turbo", "softmax", "matmul:cluster", "softmax:cluster:x"])
def test_kernels_that_there_are_not(name, capsys):
    with pytest.raises(SystemExit):
        options.parse(["softmax", "--variants", name])
    assert (
        f"{name} is not known; accepted: softmax:VARIANT[:PARAMETER] with one of short, "
        in capsys.readouterr().err
    )
