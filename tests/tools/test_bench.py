"""The benchmark refuses wrong results, reports peers that fail, and compares what it says it compares."""

import json
import math
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import tilewise as tw
from tilewise.bench import __main__ as bench
from tilewise.bench import cases, measure, options, peers, record, report, timing
from tilewise.bench.calls import Call, Case
from tilewise.bench.gradients import ACTIVATIONS, ActivationBackward, SoftmaxBackward


def run(*arguments):
    return bench.main(["add", "--device", "cpu", "--quick", "--only", "2^12 float32", *arguments])


def test_a_run_writes_its_figures(tmp_path, capsys, monkeypatch):
    # Whatever else the machine does.
    monkeypatch.setattr(record, "MOST_NOISE", math.inf)
    file = tmp_path / "figures.json"
    assert (
        run(
            "--json",
            str(file),
            "--record",
            str(tmp_path / "kept"),
            "--date",
            "2026-01-02",
            "--tests",
            "1 passed",
        )
        == 0
    )
    (case,) = json.loads(file.read_text())["cases"]
    assert case["bytes"] == 3 * 4 * 4096
    assert set(case["milliseconds"]) == {"tilewise", "torch", "copy"}
    times = case["milliseconds"]
    assert case["ratios"]["torch"] == pytest.approx(times["torch"] / times["tilewise"])
    cpu = tw.explain("softmax", torch.ones(1)).cpu
    name = f"2026-01-02-cpu-{cpu.instructions.lower()}-{torch.get_num_threads()}-add"
    kept = json.loads((tmp_path / "kept" / f"{name}.json").read_text())
    assert kept["tests"] == "1 passed"
    assert kept["command"] == "python -m tilewise.bench add --quick --device cpu --only '2^12 float32'"
    assert str(tmp_path) not in json.dumps(kept)
    assert "contiguous 2^12" in (tmp_path / "kept" / f"{name}.md").read_text()
    assert "contiguous 2^12" in capsys.readouterr().out


def test_a_wrong_result_fails_the_run_and_is_not_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tw, "add", lambda x, y: torch.add(x, y) * (1 + 1e-5))
    assert run("--record", str(tmp_path)) == 1
    assert "WRONG" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_exception_of_ours_fails_the_run(monkeypatch, capsys):
    def broken(x, y):
        raise tw.ShapeError("no such shape")

    monkeypatch.setattr(tw, "add", broken)
    assert run() == 1
    assert "no such shape" in capsys.readouterr().err


def test_a_peer_that_fails_is_named_and_the_others_are_timed():
    def raises():
        raise RuntimeError("out of luck")

    timings = timing.interleave(
        {"good": lambda: 1, "bad": raises}, timing.CpuClock(), rounds=2, budget_ms=0.1
    )
    assert timings.errors == {"bad": "RuntimeError: out of luck"}
    assert set(timings.median) == {"good"}


def test_candidates_take_turns():
    class Clock:
        lost = 0.0

        def __init__(self):
            self.turns = []

        def warm_up(self, call):
            return 1.0

        def sample(self, call, repetitions):
            self.turns.append(call())
            return [{"slow": 3.0, "fast": 2.0}[call()]] * repetitions

    clock = Clock()
    timings = timing.interleave(
        {"slow": lambda: "slow", "fast": lambda: "fast"}, clock, rounds=2, budget_ms=5
    )
    assert clock.turns == ["slow", "fast", "slow", "fast"]
    assert timings.median == {"slow": 3.0, "fast": 2.0}


def test_tf32_is_on_for_torch_while_it_is_compared_in_tf32_and_off_otherwise(monkeypatch):
    torch.set_float32_matmul_precision("highest")
    seen = []
    plain = torch.matmul
    monkeypatch.setattr(
        torch, "matmul", lambda *args: seen.append(torch.get_float32_matmul_precision()) or plain(*args)
    )
    a = torch.randn(4, 4)
    for precision in ("tf32", "ieee"):
        Call("matmul", (a, a), {"precision": precision}).by_torch()()
    assert seen == ["high", "highest"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_matmul_in_tf32_may_err_as_its_operands_do():
    a, b = torch.randn(64, 512), torch.randn(512, 64)
    exact = a.double() @ b.double()
    truncated = [(x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b)]
    result = truncated[0] @ truncated[1]
    assert Call("matmul", (a, b), {"precision": "tf32"}).worst_error(result, exact) <= 1
    assert Call("matmul", (a, b)).worst_error(result, exact) > 1
    wrong = [(x.view(torch.int32) & ~0xFFFFF).view(torch.float32) for x in (a, b)]  # 3 bits
    assert Call("matmul", (a, b), {"precision": "tf32"}).worst_error(wrong[0] @ wrong[1], exact) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fp16_and_bf16_are_upcast_on_a_cpu(dtype):
    a, b, bias = torch.randn(5, 7).to(dtype), torch.randn(7, 3).to(dtype), torch.randn(3).to(dtype)
    call = Call("matmul", (a, b), {"bias": bias, "activation": "relu"})
    upcast = peers.candidates(call, ("upcast",))["upcast"]()
    expected = torch.relu(torch.addmm(bias.float(), a.float(), b.float())).to(dtype)
    assert torch.equal(upcast, expected)
    assert set(peers.candidates(Call("matmul", (a.float(), b.float())), ("upcast",))) == {"tilewise"}


def test_ratios_say_who_is_faster():
    m = record.Measurement("matmul", "case", "float32", bytes=1000, flops=10**9)
    m.milliseconds = {"tilewise": 2.0, "torch": 3.0, "triton": 1.0, "copy": 0.5}
    m.compare(record.Ceilings(copy_bytes_per_second=1e6, flops_per_second={"float32": 1e12}))
    assert m.best_peer == "triton"
    assert m.ratios == pytest.approx(
        {"torch": 1.5, "triton": 0.5, "copy": 0.25, "of copy ceiling": 0.5, "of matmul ceiling": 0.5}
    )


@pytest.mark.parametrize("op", ["add", "softmax", "matmul", *options.GRADIENTS])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [True, False])
def test_every_case_is_one_call_of_its_own(op, device, quick):
    seen = set()
    for case in cases.cases(op, device, quick):
        call = case.build(torch.device("meta"))
        assert call.op == op
        reference, result = call.reference(), call.by_torch()()
        if op == "activation_backward":
            assert (result[1] is not None) == call.options["bias"] == case.name.endswith("bias")
            reference, result = reference[0], result[0]
        assert reference.shape == call.result_shape()
        assert result.dtype == call.result_dtype()
        assert call.min_bytes() > 0
        assert (call.flops() > 0) == (op == "matmul")
        seen.add((case.name, case.dtype))
    assert len(seen) == len(list(cases.cases(op, device, quick)))


def test_the_committed_records_hold_cases_that_are_still_measured():
    kept = [
        record.load(file)
        for file in (record.checkout() / "benchmarks/results").glob("*.json")
        if "cases" in json.loads(file.read_text())
    ]
    assert kept
    for run in kept:
        device = "cpu" if run.facts["device"] == "CPU" else "cuda"
        measured = {
            (case.op, case.name, case.dtype)
            for op in options.OPERATIONS
            for quick in (False, True)
            for case in cases.cases(op, device, quick)
        }
        # --compare finds a case by its key.
        assert {m.key for m in run.measurements} <= measured


def test_only_torch_is_asked_for_a_result_without_elements():
    for n, expected in ((0, {"tilewise", "torch"}), (1, {"tilewise", "torch", "compile"})):
        call = Call("add", (torch.zeros(n), torch.zeros(n)))
        assert set(peers.candidates(call, ("torch", "triton", "compile"))) == expected


def test_a_case_that_does_not_fit_into_memory_is_a_failed_one(monkeypatch, capsys):
    def too_large(*_):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(Call, "reference", too_large)
    assert run() == 1
    assert "can't allocate memory" in capsys.readouterr().err


@pytest.mark.parametrize("who", ["tilewise", "torch"])
@pytest.mark.parametrize(("samples", "lost"), [([1.0, 1.0, 1.0, 9.0], 0.6), ([9.0, 9.0, 9.0, 1.0], 0.0)])
def test_a_ratio_that_is_noise_is_left_out(who, samples, lost):
    class Clock:
        lost = 0.0

        def warm_up(self, call):
            return 1.0

        def sample(self, call, repetitions):
            self.lost = lost if call() == who else 0.0
            return samples if call() == who else [2.0, 2.0, 2.0, 2.1]

    candidates = {"tilewise": lambda: "tilewise", "torch": lambda: "torch", "copy": lambda: "copy"}
    timings = timing.interleave(candidates, Clock(), rounds=3, budget_ms=4)
    m = record.Measurement("add", "contiguous 2^12", "float32", bytes=1 << 28, flops=0)
    m.milliseconds, m.spread, m.noise = timings.median, timings.spread, timings.noise
    m.compare(record.Ceilings(1e12, {}))
    assert "torch" not in m.ratios
    assert ("copy" in m.ratios) == (who == "torch")
    assert "noise" in report.row(m)
    assert report.row(m)[2] != ""


class Attempts:
    """A clock for one candidate: each attempt's times are its number, with a share of them lost."""

    lost, begun = 0.0, 0

    def __init__(self, shares):
        self.shares = shares

    def warm_up(self, call):
        call()
        self.begun += 1
        return 1.0

    def sample(self, call, repetitions):
        self.lost = self.shares[self.begun - 1]
        return [float(self.begun)] * repetitions


@pytest.mark.parametrize(
    ("shares", "kept", "begun"), [([0.9, 0.1, 0.0], 2, 2), ([0.9, 0.5, 0.7], 2, 3), ([0.2, 0.0, 0.0], 1, 1)]
)
def test_what_was_noise_is_timed_again_and_the_least_noise_counts(shares, kept, begun):
    clock = Attempts(shares)
    timings = timing.interleave({"tilewise": lambda: None}, clock, rounds=3, budget_ms=4, attempts=3)
    assert clock.begun == begun
    assert timings.median == {"tilewise": kept}
    assert timings.noise == {"tilewise": pytest.approx(shares[kept - 1])}


def test_what_failed_is_not_timed_again():
    calls = []

    def broken():
        calls.append("broken")
        raise RuntimeError("no such kernel")

    candidates = {"torch": broken, "tilewise": lambda: None}
    timings = timing.interleave(candidates, Attempts([0.9, 0.1]), rounds=3, budget_ms=4, attempts=3)
    assert calls == ["broken"]
    assert timings.errors == {"torch": "RuntimeError: no such kernel"}
    assert timings.median == {"tilewise": 2}


def test_a_thread_that_waits_for_a_core_is_noticed(monkeypatch):
    waits = iter([0.0, 0.5, 1.0, 1.0])
    monkeypatch.setattr(timing, "waited", lambda: next(waits))
    clock = timing.CpuClock()
    clock.sample(lambda: None, 4)
    assert clock.lost == 1.0
    clock.sample(lambda: None, 4)
    assert clock.lost == 0.0


def test_what_fits_in_a_cpus_caches_is_no_share_of_a_large_copy():
    ceilings = record.Ceilings(1e9, {"float32": 1e12})
    for bytes, flops, cpu, shown in (
        (1 << 12, 0, True, False),
        (1 << 12, 0, False, True),
        (1 << 28, 0, True, True),
    ):
        m = record.Measurement("add", "case", "float32", bytes, flops, {"tilewise": 1.0, "torch": 2.0})
        m.compare(ceilings, cpu=cpu)
        assert ("of copy ceiling" in m.ratios) == shown
        assert m.ratios["torch"] == 2.0


def test_an_expanded_operand_is_read_once():
    x, row = torch.zeros(8, 100), torch.zeros(100).expand(8, 100)
    assert Call("add", (x, row)).min_bytes() == 4 * (800 + 100 + 800)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["add", "softmax", "log_softmax", "matmul"])
def test_torch_is_right_and_one_changed_element_is_wrong(op, dtype):
    x, y = torch.randn(64, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype)
    call = Call(op, (x, y)) if op in ("add", "matmul") else Call(op, (x,), {"dim": -1})
    reference, result = call.reference(), call.by_torch()()
    assert call.worst_error(result, reference) <= 1
    for index in [(0, 0), (63, 63)]:
        off = result.clone()
        off[index] += max(0.1 * abs(off[index].item()), 0.01 * reference.abs().mean().item())
        assert call.worst_error(off, reference) > 1
        off[index] = math.nan
        assert not call.worst_error(off, reference) <= 1
    assert (
        call.worst_error(result.float() if dtype != torch.float32 else result.half(), reference) == math.inf
    )
    assert call.worst_error(result[:1], reference) == math.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", options.GRADIENTS[:2])
def test_torch_and_tilewise_agree_on_gradients_and_one_changed_element_is_wrong(op, dtype):
    forward = getattr(torch, op.removesuffix("_backward"))
    grad, output = torch.randn(64, 96, dtype=dtype), forward(torch.randn(64, 96), -1).to(dtype)
    call = SoftmaxBackward(op, (grad, output), {"dim": -1})
    assert call.min_bytes() == 3 * 64 * 96 * dtype.itemsize
    reference, candidates = call.reference(), peers.candidates(call, options.DEFAULT_PEERS)
    assert set(candidates) == {"tilewise", "torch"}
    result = candidates["tilewise"]()
    assert call.worst_error(candidates["torch"](), reference) <= 1
    assert call.worst_error(result, reference) <= 1
    result[63, 95] += max(0.1 * abs(result[63, 95].item()), 0.01 * reference.abs().mean().item())
    assert call.worst_error(result, reference) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_wrong_gradient_of_an_activation_or_of_a_bias_is_noticed(activation, bias, dtype):
    operands = torch.randn(64, 96, dtype=dtype), torch.randn(64, 96, dtype=dtype)
    call = ActivationBackward("activation_backward", operands, {"activation": activation, "bias": bias})
    assert call.min_bytes() == (3 * 64 + bias) * 96 * dtype.itemsize
    reference, candidates = call.reference(), peers.candidates(call, options.DEFAULT_PEERS)
    assert set(candidates) == {"tilewise", "torch"}
    result = candidates["tilewise"]()
    assert call.worst_error(candidates["torch"](), reference) <= 1
    assert call.worst_error(result, reference) <= 1
    for part in result[: 1 + bias]:
        before = part.clone()
        for off in (0.2 * float(before.double().abs().max()), math.nan):
            part.reshape(-1)[-1] += off
            assert not call.worst_error(result, reference) <= 1
            part.copy_(before)


def product_in_halves(a, b, k):
    """As kernels that split k: the parts are rounded before they are added."""
    half = k // 2
    return a[:, :half] @ b[:half] + a[:, half:k] @ b[half:k]


def softmax_backward_of_rounded_products(grad, output, dim, weight=1):
    products = grad * output
    return products - weight * output * products.sum(dim, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", ["matmul", "softmax_backward"])
def test_a_peer_may_round_on_the_way_but_not_be_wrong(op, dtype, monkeypatch):
    if op == "matmul":
        call = Call(op, (torch.randn(64, 511, dtype=dtype), torch.randn(511, 96, dtype=dtype)))
        rounded, wrong = (partial(product_in_halves, *call.args, k) for k in (511, 503))
    else:
        output = torch.randn(256, 16).softmax(-1).to(dtype)
        call = SoftmaxBackward(op, (torch.randn(256, 16, dtype=dtype), output), {"dim": -1})
        rounded, wrong = (
            partial(softmax_backward_of_rounded_products, *call.args, -1, weight) for weight in (1, 0.8)
        )
    operands, reference = [t.clone() for t in call.args], call.reference()
    assert call.worst_error(rounded(), reference) > 1
    assert call.worst_error(rounded(), reference, of_peer=True) <= 1
    assert not call.worst_error(wrong(), reference, of_peer=True) <= 1
    assert all(map(torch.equal, call.args, operands))

    case = Case(op, "case", str(dtype), lambda device: call)

    def marked(**by):
        for who, function in by.items():
            monkeypatch.setattr(type(call), f"by_{who}", lambda _, found=function: found)
        found = measure.measure_case(case, torch.device("cpu"), timing.CpuClock(), ("torch",), quick=True)
        return set(found.errors)

    # The reference is made by `by_torch` too.
    monkeypatch.setattr(type(call), "reference", lambda _: reference)
    assert marked(torch=rounded) == set()
    assert marked(torch=wrong) == {"torch"}
    assert marked(torch=rounded, tilewise=rounded) == {"tilewise"}


def test_a_record_says_nothing_of_where_things_lie():
    described = json.dumps(record.describe("bench", "cpu", None, None))
    assert '"/' not in described
    assert "_core." in described


def test_a_record_is_current_until_code_changes(tmp_path):
    rust, cuda = "//! What.\nfn f() { g(1) } // why\n", "// targets: 75 80\n// What.\nint f() { return 1; }\n"
    for name, text in {
        "kernels/add.cu": cuda,
        "kernels/common/x.cuh": "#pragma once\n" + cuda,
        "src/cuda/mod.rs": rust,
        "src/cuda/plan/add/mod.rs": rust,
        "src/cuda/plan/add/tests/mod.rs": rust,
        "build.rs": rust,
        "build/compile.rs": rust,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "src/lib.rs").write_text("not part of it")
    kept = tmp_path / "record.json"
    kept.write_text(json.dumps({"digest": record.digest(tmp_path)}))
    assert record.is_current(kept, tmp_path)
    (tmp_path / "src/lib.rs").write_text("changed")
    assert record.is_current(kept, tmp_path)
    (tmp_path / "src/cuda/plan/add/tests/mod.rs").write_text("fn g() {}")
    assert record.is_current(kept, tmp_path)
    for name in ("kernels/common/x.cuh", "src/cuda/plan/add/mod.rs", "build.rs", "build/compile.rs"):
        before = (tmp_path / name).read_text()
        for comment in ("\n", "// Measured.\n", "/* Measured. */", "  // What.\n"):
            (tmp_path / name).write_text(before + comment)
            assert record.is_current(kept, tmp_path), comment
        (tmp_path / name).write_text(before.replace("{ ", "{\n    "))
        assert record.is_current(kept, tmp_path)
        for old, new in (("f()", "h()"), ("1", "2"), (" }", " }\n#define N 1\n")):
            (tmp_path / name).write_text(before.replace(old, new))
            assert not record.is_current(kept, tmp_path), new
        (tmp_path / name).write_text(before)
    (tmp_path / "kernels/add.cu").write_text(cuda.replace("75 80", "75"))
    assert not record.is_current(kept, tmp_path)
    (tmp_path / "kernels/add.cu").rename(tmp_path / "kernels/sum.cu")
    assert not record.is_current(kept, tmp_path)


@pytest.mark.parametrize("text", [None, "not json", "[]", "{}"])
def test_what_is_not_a_record_is_told_so(tmp_path, capsys, text):
    file = tmp_path / "record.json"
    if text is not None:
        file.write_text(text)
    assert bench.main(["--check-record", str(file)]) == 2
    assert "not a record" in capsys.readouterr().err


def test_the_digest_of_this_checkout_is_found():
    assert len(record.digest()) == 64
    assert record.digest(sources=record.CPU_SOURCES) != record.digest()
    assert (record.checkout() / "build.rs").is_file()


@pytest.mark.parametrize("arguments", [["subtract"], ["--peers", "torch,nobody"], ["--device", "tpu"]])
def test_unknown_words_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert arguments[-1].split(",")[-1] in capsys.readouterr().err


def test_no_such_case(capsys):
    assert bench.main(["add", "--device", "cpu", "--only", "2^99"]) == 2
    assert "2^99" in capsys.readouterr().err


def test_a_ceiling_that_is_noise_is_none(monkeypatch):
    monkeypatch.setattr(timing, "waited", iter(range(10**6)).__next__)
    found = measure.ceilings(torch.device("cpu"), timing.CpuClock(), {"float32"})
    assert found == record.Ceilings(0.0, {})
    assert report.ceilings_line(found) == "copy: noise"
    m = record.Measurement("add", "case", "float32", 1 << 28, 0, {"tilewise": 1.0, "torch": 2.0})
    m.compare(found)
    assert m.ratios == {"torch": 2.0}
