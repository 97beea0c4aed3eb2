"""The benchmark's pictures show what they should, whatever a run has; so does the terminal while it runs."""

import io
import json
import re

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from support.bench_run import measurement, whole_run
from tilewise.bench import __main__ as bench
from tilewise.bench import charts, measure, plot
from tilewise.bench.record import Run


def test_a_picture_of_everything(tmp_path):
    file, picture = tmp_path / "run.json", tmp_path / "all.svg"
    file.write_text(json.dumps(whole_run().as_json()))
    bench.main(["--from", str(file), "--plot", str(picture)])
    sections = [section.name for section in plot.sections(whole_run())]
    assert sections == [
        *("add by size", "add by kind", "softmax by size", "softmax by kind"),
        *("matmul by size", "matmul roofline", "matmul by kind", "overhead"),
    ]
    assert picture.read_text().count("<svg") == 1


@pytest.mark.parametrize("ops", [[], ["add"], ["softmax"], ["matmul"], ["overhead"]])
def test_a_picture_of_a_part(tmp_path, ops):
    run = whole_run()
    part = Run(run.facts, run.ceilings, [m for m in run.measurements if m.op in ops])
    plot.save(part, tmp_path / "part.png")
    assert (tmp_path / "part.png").stat().st_size > 1000


def test_series_of_sizes_leave_out_what_is_of_another_kind():
    run = whole_run()
    run.measurements += [
        measurement("softmax", "8x8", bytes=256, tilewise=1.0),
        measurement("softmax", "1x16777216", bytes=1 << 26, tilewise=1.0),
        measurement("softmax", "8192x8192 dim 0", bytes=1 << 28, tilewise=1.0),
        measurement("matmul", "4096^3 nn bias", bytes=1 << 28, flops=1, tilewise=1.0),
    ]
    assert [x for x, _ in charts.series(run, "softmax")["bfloat16"]] == [1024, 2048, 4096, 8192, 16384]
    assert [x for x, _ in charts.series(run, "matmul")["bfloat16"]] == [1000, 1024, 2048, 4096, 8192, 16384]
    _, labels = charts.ticks("softmax", [16, 64, 781, 1024, 12672, 16384, 262144])
    assert labels == ["16", "64", "1024", "16k", "256k"]
    assert charts.ticks("softmax", [2**14, 2**21])[1] == ["16k", "2M"]
    assert charts.in_bytes(3 << 20) == "3 MiB"


def test_tf32_has_a_ceiling_of_its_own():
    run = whole_run()
    float32 = run.ceilings.flops_per_second["float32"]
    run.measurements.append(
        measurement("matmul", "4096^3 nn tf32", "float32", 1 << 20, 2**40, tilewise=1.0, torch=0.5)
    )
    run.settle("matmul")
    assert run.ceilings.flops_per_second["float32"] == float32
    assert run.ceilings.flops_per_second["tf32"] == 2**40 / 0.5e-3
    assert run.measurements[-1].ratios["of matmul ceiling"] == pytest.approx(0.5)
    figure = Figure()
    charts.roofline(figure, run)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "tilewise, tf32" in labels


def test_every_case_with_a_peer_is_in_a_picture():
    run = whole_run()
    run.measurements += [
        measurement("softmax", "8192x8192 dim 0", bytes=1 << 28, tilewise=1.0, torch=2.0),
        measurement("add", "64x64 + row", bytes=1 << 14, tilewise=1.0, torch=2.0),
    ]
    run.settle("softmax")
    run.settle("add")
    for op in ("softmax", "add", "matmul"):
        drawn = [m.key for m in charts.compared(run, op)]
        assert drawn == [m.key for m in run.of(op) if not m.failed]
    figure = Figure()
    charts.by_kind(figure, run, "softmax")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["last dim, aligned", "other dims"]
    points = [
        line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())
    ]
    low, high = axes.get_xlim()
    assert len(points) == len(charts.compared(run, "softmax"))
    assert all(low < point < high for point in points)


def test_bars_stay_inside_the_axes():
    figure = Figure()
    charts.overhead(figure, whole_run())
    (axes,) = figure.axes
    assert all(bar.get_y() + bar.get_height() < axes.get_ylim()[1] for bar in axes.patches)


def test_a_lone_size_is_drawn_where_there_is_nothing_better():
    run = whole_run()
    run.measurements = run.of("softmax")[:1]
    assert list(charts.series(run, "softmax")) == ["bfloat16"]
    run = whole_run()
    run.measurements.append(measurement("softmax", "32768x64", "float64", bytes=1 << 24, tilewise=1.0))
    assert list(charts.series(run, "softmax")) == ["bfloat16"]


def test_a_terminal_sees_a_live_table(monkeypatch):
    rich = pytest.importorskip("rich.console")
    real, screen = rich.Console, io.StringIO()
    monkeypatch.setattr(
        rich, "Console", lambda **_: real(file=screen, force_terminal=True, width=160, height=40)
    )
    with measure.display(3, 1) as shown:
        shown.begin("contiguous 2^20 bfloat16")
        shown.done(whole_run().of("add")[:1])
    assert "2/3" in screen.getvalue()
    assert re.search("contiguous 2.20 +│ bfloat16", screen.getvalue())
