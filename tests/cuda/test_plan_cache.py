"""How a problem is solved is decided once, whichever way it comes."""

import threading

import pytest
import tilewise as tw
import torch
from tilewise import _core

pytestmark = pytest.mark.gpu

CALLS = {
    "add": lambda x: tw.add(x, x),
    "softmax": lambda x: tw.softmax(x, dtype=torch.float32),
    "log_softmax": lambda x: tw.log_softmax(x, 0),
    "matmul": lambda x: tw.matmul(x, x, activation="relu"),
    "softmax_backward": lambda x: tw.softmax_backward(x, x),
    "activation_backward": lambda x: _core.activation_backward(
        x, x, "silu", saved_is="pre_activation", bias=True
    ),
}


def choices(call, *args):
    before = _core.choices_made()
    call(*args)
    return _core.choices_made() - before


def recorded(call):
    return lambda x: call(x.requires_grad_())


def dispatched(call):
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def inside(x):
        with Mode():
            return call(x)

    return inside


def from_another_library(call):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    return lambda x: call(cupy.from_dlpack(x))


ROUTES = {
    "direct": lambda call: call,
    "recorded": recorded,
    "dispatched": dispatched,
    "cupy": from_another_library,
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("op", CALLS)
def test_one_choice_for_a_new_problem_and_none_for_a_known_one(op, route):
    if "backward" in op and route == "recorded":
        pytest.skip("a gradient is not recorded")
    if op in ("softmax", "log_softmax") and route == "cupy":
        call = CALLS[op] if op == "log_softmax" else lambda x: tw.softmax(x, dtype="float32")
    else:
        call = CALLS[op]
    # Of a size that no other test and no other route asks for.
    size = 2048 + 8 * (10 * list(CALLS).index(op) + list(ROUTES).index(route))
    inputs = [torch.randn(size, size, device="cuda").half() for _ in range(6)]
    call = ROUTES[route](call)
    counts = [choices(call, x) for x in inputs]
    assert counts == [1, 0, 0, 0, 0, 0]


def test_what_is_known_of_one_route_is_known_of_all():
    x = torch.randn(1208, 1208, device="cuda").half()
    assert choices(tw.softmax, x) == 1
    assert choices(dispatched(tw.softmax), torch.randn_like(x)) == 0
    assert choices(tw.softmax, torch.randn_like(x).requires_grad_()) == 0
    # In place, and into another tensor.
    assert choices(lambda: tw.softmax(x, out=torch.empty_like(x))) == 0
    assert choices(lambda: tw.softmax(x, out=x)) == 0


def test_a_choice_that_a_developer_forces_is_made_anew():
    x = torch.randn(1216, 1216, device="cuda").half()
    expected = torch.softmax(x, -1)
    for variant in (None, "online", "cluster", None):
        _core.force_softmax(variant)
        counts = [choices(tw.softmax, x) for _ in range(4)]
        assert counts == [1, 0, 0, 0]
        torch.testing.assert_close(tw.softmax(x), expected, rtol=1e-2, atol=1e-3)


def test_operands_elsewhere():
    memory = torch.zeros(1 << 22, dtype=torch.half, device="cuda")
    expected_choices = 0
    for step in range(40):
        # By whole lines: the same plan; by less: another.
        start = 64 * step
        x = memory[start : start + 1224 * 1224].view(1224, 1224).copy_(torch.randn(1224, 1224))
        y = memory[(1 << 21) + 128 * step :][: 1224 * 1224].view(1224, 1224).copy_(torch.randn(1224, 1224))
        out = torch.empty_like(x)
        count = choices(lambda: tw.matmul(x, y, out=out))  # noqa: B023 - called here
        assert count == (1 if step == 0 else 0)
        expected_choices += count
        torch.testing.assert_close(out, x @ y, rtol=1e-2, atol=0.5)
    assert expected_choices == 1
    x = memory[8 : 8 + 1224 * 1224].view(1224, 1224)
    assert choices(lambda: tw.matmul(x, x, out=torch.empty_like(x))) == 1


def test_a_thread_knows_its_own():
    x = torch.randn(1232, 1232, device="cuda").half()
    counts = []

    def work():
        counts.append([choices(tw.softmax, x) for _ in range(3)])

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert counts == [[1, 0, 0]] * 2


def test_as_many_as_a_models_layers_are_kept():
    inputs = [torch.randn(8, 4096 + 8 * i, device="cuda") for i in range(60)]
    for x in inputs:
        tw.softmax(x)
    assert all(choices(tw.softmax, x) == 0 for x in inputs)
