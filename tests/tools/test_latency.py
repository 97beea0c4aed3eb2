"""The latency models give planted coefficients back, with intervals that hold, and refuse what fixes none."""

import dataclasses
import doctest
import json
import math
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

import tilewise as tw
from scipy import stats
from support import fresh
from tilewise import latency
from tilewise.latency import FitError, fit_csv, fit_tpot, fit_ttft
from tilewise.latency import __main__ as command

T = np.array([1, 2, 3, 4, 8, 16, 32, 64.0])
GRID_S, GRID_T = (a.ravel() for a in np.meshgrid([16, 100, 512, 4096.0], [1, 3, 8, 40.0]))


def tpot(t):
    return 2.5 * np.log(t) + 7


def ttft(s, t):
    return 3 * np.log(t) + 0.5 * np.log(s) + 11


def rng():
    return np.random.default_rng(5)


def test_exact_times_give_the_planted_coefficients():
    one, two = fit_tpot(T, tpot(T)), fit_ttft(GRID_S, GRID_T, ttft(GRID_S, GRID_T))
    assert (one.k1, one.b1) == pytest.approx((2.5, 7), rel=1e-13)
    assert (two.k2, two.k3, two.b2) == pytest.approx((3, 0.5, 11), rel=1e-12)
    assert one.r_squared == two.r_squared == pytest.approx(1)
    assert one.predict(1000) == pytest.approx(tpot(1000))
    assert two.predict(1000, 7) == pytest.approx(ttft(1000, 7))


def test_a_line_is_fitted_as_scipy_fits_it():
    y = tpot(T) + rng().normal(size=T.size)
    model, expected = fit_tpot(T, y), stats.linregress(np.log(T), y)
    assert model.k1 == pytest.approx(expected.slope, rel=1e-12)
    assert model.b1 == pytest.approx(expected.intercept, rel=1e-12)
    assert model.coefficients["k1"].standard_error == pytest.approx(expected.stderr, rel=1e-12)
    assert model.coefficients["b1"].standard_error == pytest.approx(expected.intercept_stderr, rel=1e-12)
    assert model.r_squared == pytest.approx(expected.rvalue**2, rel=1e-12)
    half = stats.t.ppf(0.975, T.size - 2) * expected.stderr
    assert model.coefficients["k1"].low == pytest.approx(expected.slope - half, rel=1e-12)
    assert model.coefficients["k1"].high == pytest.approx(expected.slope + half, rel=1e-12)


def test_two_inputs_are_fitted_as_by_the_normal_equations():
    y = ttft(GRID_S, GRID_T) + rng().normal(size=GRID_S.size)
    model = fit_ttft(GRID_S, GRID_T, y)
    x = np.column_stack([np.log(GRID_T), np.log(GRID_S), np.ones(y.size)])
    inverse = np.linalg.inv(x.T @ x)
    values = inverse @ x.T @ y
    residuals = y - x @ values
    assert [model.k2, model.k3, model.b2] == pytest.approx(values)
    assert model.residuals == pytest.approx(residuals)
    assert model.residual_std**2 == pytest.approx(residuals @ residuals / (y.size - 3))
    assert model.covariance == pytest.approx(inverse * model.residual_std**2)
    assert model.r_squared == pytest.approx(1 - residuals.var() / y.var())
    assert model.degrees_of_freedom == y.size - 3


def test_as_many_intervals_contain_the_truth_as_is_said():
    noise, runs, confidence = rng(), 150, 0.8
    hits = {"k1": 0, "b1": 0, "k2": 0, "k3": 0, "b2": 0, "tpot(5)": 0, "ttft(50, 5)": 0}
    truth = {"k1": 2.5, "b1": 7, "k2": 3, "k3": 0.5, "b2": 11}
    for _ in range(runs):
        one = fit_tpot(T, tpot(T) + noise.normal(size=T.size), confidence=confidence)
        y = ttft(GRID_S, GRID_T) + noise.normal(size=GRID_S.size)
        two = fit_ttft(GRID_S, GRID_T, y, confidence=confidence)
        for name, found in {**one.coefficients, **two.coefficients}.items():
            hits[name] += found.low < truth[name] < found.high
        for name, (low, high), true in [
            ("tpot(5)", one.interval(5), tpot(5)),
            ("ttft(50, 5)", two.interval(50, 5), ttft(50, 5)),
        ]:
            hits[name] += low < true < high
    # Four standard deviations of a share counted over so many runs.
    allowed = 4 * math.sqrt(confidence * (1 - confidence) / runs)
    for name, count in hits.items():
        assert count / runs == pytest.approx(confidence, abs=allowed), name


def test_a_narrow_range_keeps_its_digits():
    t = 1e5 + np.arange(9.0)
    model = fit_tpot(t, 1e6 * (np.log(t) - math.log(1e5)) + 100)
    assert model.k1 == pytest.approx(1e6, rel=1e-6)


def test_predictions_have_the_shape_of_what_they_are_asked_for():
    one, two = fit_tpot(T, tpot(T)), fit_ttft(GRID_S, GRID_T, ttft(GRID_S, GRID_T))
    assert type(one.predict(3)) is type(two.predict(3, 4)) is float
    assert type(one.interval(3)[0]) is float
    assert one.predict([3, 4, 5]) == pytest.approx(tpot(np.array([3, 4, 5])))
    assert two.predict(np.array([[8], [16]]), [1, 2, 3]).shape == (2, 3)
    low, high = two.interval(np.array([[8], [16]]), [1, 2, 3])
    assert low.shape == high.shape == (2, 3)
    for wrong in (0, -1, math.nan, [1, 0]):
        with pytest.raises(FitError, match="above 0"):
            one.predict(wrong)


def test_a_model_is_frozen_and_keeps_its_own_numbers():
    t, y = T.copy(), tpot(T)
    model = fit_tpot(t, y)
    t[:] = 1
    assert model.inputs["t"] == pytest.approx(T)
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.unit = "s"
    with pytest.raises(TypeError):
        model.coefficients["k1"] = 0
    for array in (model.inputs["t"], model.times, model.residuals, model.covariance):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_times_that_are_all_alike_have_no_r_squared():
    model = fit_tpot(T, np.full(T.size, 0.1))
    assert model.k1 == pytest.approx(0, abs=1e-15)
    assert math.isnan(model.r_squared)
    assert json.loads(json.dumps(model.as_dict()))["r_squared"] is None


def test_lists_and_torch_tensors_are_arrays_too():
    torch = pytest.importorskip("torch")
    expected = fit_tpot(T, tpot(T)).k1
    assert fit_tpot(T.tolist(), tpot(T).tolist()).k1 == expected
    assert fit_tpot(torch.tensor(T), torch.tensor(tpot(T))).k1 == expected


@pytest.mark.parametrize(
    ("fit", "arguments", "error", "words"),
    [
        (fit_tpot, ([1, 2, 4], [1, 2, 0]), FitError, r"y\[2\] is 0; every value must be finite and above 0"),
        (fit_tpot, ([1, 2, -4], [1, 2, 3]), FitError, r"t\[2\] is -4"),
        (fit_tpot, ([1, 2, 4], [1, math.inf, 3]), FitError, r"y\[1\] is inf"),
        (fit_ttft, ([1, math.nan], [1, 2], [1, 2]), FitError, r"s\[1\] is nan"),
        (fit_tpot, ([1, 2, 4], [1, 2]), tw.ShapeError, "the lengths differ: t 3, y 2"),
        (fit_tpot, ([[1, 2, 4]], [1, 2, 3]), tw.ShapeError, r"t has shape \(1, 3\)"),
        (fit_tpot, (1, 2), tw.ShapeError, r"t has shape \(\)"),
        (fit_tpot, (["a", "b"], [1, 2]), tw.DTypeError, "t: cannot be read as an array of numbers"),
        (fit_tpot, ([[1], [2, 3]], [1, 2]), tw.DTypeError, "t: cannot be read as an array of numbers"),
        (fit_tpot, ([], []), FitError, "measured at 0 different t; 3 are needed"),
        (fit_tpot, ([1, 2], [1, 2]), FitError, "measured at 2 different t; 3 are needed"),
        (fit_tpot, ([1, 1, 2, 2], [1, 1, 2, 2]), FitError, "one more to tell whether the model holds"),
        (fit_tpot, ([8] * 5, [1, 2, 3, 4, 5]), FitError, "t is 8 in every measurement"),
        (fit_tpot, (1e9 + np.arange(4), [1, 2, 3, 4]), FitError, "hardly differ: measure over a wider range"),
        (fit_ttft, ([5] * 5, [1, 2, 3, 4, 5], [1] * 5), FitError, "s is 5 in every measurement"),
        (fit_ttft, ([1, 2, 4], [1, 1, 2], [1, 2, 3]), FitError, "measured at 3 different s and t; 4 are"),
        (fit_ttft, (T, 3 * T, T), FitError, "s and t rise and fall together"),
        (fit_ttft, (T, T**-2.0, T), FitError, "s and t rise and fall together"),
    ],
)
def test_what_does_not_determine_a_model_is_refused(fit, arguments, error, words):
    with pytest.raises(error, match=words) as caught:
        fit(*arguments)
    assert isinstance(caught.value, tw.TilewiseError)


@pytest.mark.parametrize("confidence", [0, 1, 95, math.nan])
def test_a_confidence_is_a_share(confidence):
    with pytest.raises(FitError, match="between 0 and 1"):
        fit_tpot(T, tpot(T), confidence=confidence)


def table(path, header, *columns):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in zip(*columns, strict=True)), ""]))
    return path


def test_a_file_with_both_times_gives_both_models(tmp_path):
    y, z = ttft(GRID_S, GRID_T), tpot(GRID_T)
    sparse = ["" if i % 2 else value for i, value in enumerate(z)]
    file = table(
        tmp_path / "d.csv", "\ufeffS, t, TTFT_ms,note,tpot_us", GRID_S, GRID_T, y, ["x"] * 16, sparse
    )
    two, one = fit_csv(file)
    assert (two.k2, two.k3, two.b2) == pytest.approx((3, 0.5, 11))
    assert (one.k1, one.b1) == pytest.approx((2.5, 7))
    assert (two.unit, one.unit) == ("ms", "us")
    assert one.degrees_of_freedom == 8 - 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "d.csv has no column tpot or ttft"),
        ("t,time\n1,2\n", "its columns: t, time"),
        ("t,tpot,t\n1,2,3\n", "d.csv has more than one column t"),
        ("t,ttft\n1,2\n", "d.csv has ttft but no column s"),
        ("t,tpot\n1,2\n\n4,slow\n", "d.csv, line 4: tpot is 'slow', which is not a number"),
        ("tpot,t\n1,2\n4\n", "d.csv, line 3: t is '', which is not a number"),
        ("t,tpot\n1,2\n\n4,-3\n", "d.csv, line 4: tpot is -3; every value must be finite and above 0"),
        ("t,tpot\n1,2,5\n", "d.csv, line 2 has 3 cells, the first line 2"),
        ("s,t,ttft\n1,2,3\n1,0,3\n", "d.csv, line 3: t is 0; every value"),
        ("t,tpot\n1,2\n2,nan\n", "d.csv, line 3: tpot is nan; every value"),
        ("t,tpot\n1,2\n2,3\n", "d.csv, tpot: measured at 2 different t"),
        ("s,t,tpot,ttft\n1,1,2,3\n1,2,3,4\n", "without this column the other is fitted"),
        (b"\x89PNG\r\n\xff", "d.csv cannot be read as CSV"),
    ],
)
def test_a_file_that_is_none_of_measurements_is_refused(tmp_path, text, words, capsys):
    file = tmp_path / "d.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FitError, match=words):
        fit_csv(file)
    assert command.main(["fit", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_the_command_prints_fits_and_draws_them(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    noise = rng()
    file = table(
        tmp_path / "d.csv",
        "s,t,ttft_ms,tpot_ms",
        GRID_S,
        GRID_T,
        ttft(GRID_S, GRID_T) + noise.normal(size=16),
        tpot(GRID_T) + noise.normal(size=16),
    )
    picture = tmp_path / "fit.png"
    assert command.main(["fit", str(file), "--plot", str(picture), "--title", "costs $5"]) == 0
    assert capsys.readouterr().out == "\n\n".join(map(str, fit_csv(file))) + "\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert command.main(["fit", str(file), "--json", "--confidence", "0.5"]) == 0
    (two, one) = json.loads(capsys.readouterr().out)
    assert (two["model"], one["model"], one["confidence"]) == ("TTFT", "TPOT", 0.5)
    assert len(one["measurements"]) == 16
    assert one["measurements"][3]["t"] == GRID_T[3]


@pytest.mark.parametrize("place", ["none/fit.png", "fit.pgn"])
def test_a_picture_that_cannot_be_written_is_refused_at_once(tmp_path, place, capsys):
    file = table(tmp_path / "d.csv", "t,tpot", T, tpot(T))
    with pytest.raises(SystemExit) as caught:
        command.main(["fit", str(file), "--plot", str(tmp_path / place)])
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert "argument --plot" in printed.err
    assert not printed.out


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path, capsys):
    assert command.main(["fit", str(tmp_path / "none.csv")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_example_of_the_docstring():
    assert doctest.testmod(latency).failed == 0
    assert doctest.testmod(latency).attempted > 3


def test_importing_tilewise_does_not_load_it():
    fresh.run("import sys, tilewise; assert not {'tilewise.latency', 'scipy', 'numpy'} & sys.modules.keys()")
    fresh.run("import sys, tilewise.latency; assert not {'torch', 'matplotlib'} & sys.modules.keys()")


@pytest.mark.parametrize("missing", ["numpy", "scipy"])
def test_what_is_not_installed_is_named(missing):
    code = f"import sys, runpy; sys.modules[{missing!r}] = None; runpy.run_module('tilewise.latency')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert f"tilewise.latency needs {missing}: pip install {missing}" in done.stderr
