"""torch's own tools see the operations: its counter of operations, its profiler, its exporters."""

import pytest
import tilewise as tw
import tilewise.torch
import torch
from support import fresh
from tilewise.torch import native
from torch.utils.flop_counter import FlopCounterMode


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4, 1), (1, 5))]
)
def test_products_are_counted_as_torchs(device, a, b):
    def count(matmul):
        x, w = (torch.randn(shape, device=device, requires_grad=True) for shape in (a, b))
        with FlopCounterMode(display=False) as counter:
            result = matmul(x, w)
        forward = counter.get_total_flops()
        with counter:
            result.sum().backward()
        return forward, counter.get_total_flops()

    assert count(tw.matmul) == count(torch.matmul)
    assert count(lambda x, w: tw.matmul(x, w, activation="gelu"))[0] == count(torch.matmul)[0]


def test_products_of_vectors_are_counted_too():
    x, w = torch.randn(4), torch.randn(4, 5)
    for arguments, expected in (((x, w), 40), ((w.mT, x), 40), ((x, x), 8)):
        with FlopCounterMode(display=False) as counter:
            tw.matmul(*arguments)
        assert counter.get_total_flops() == expected


def test_whichever_is_imported_first():
    modules = "torch.utils.flop_counter", "tilewise.torch"
    for first, second in (modules, reversed(modules)):
        # Counting imports torch's compiler, which takes much longer.
        fresh.run_after_torch(f"""
            import {first}
            import {second}
            from torch.utils.flop_counter import flop_registry

            count = flop_registry[torch.ops.tilewise.matmul]
            assert count(torch.Size([3, 3]), torch.Size([3, 3]), out_val=None) == 54
        """)


def test_the_profiler_shows_operators_and_their_shapes(device):
    x = torch.randn(3, 4, device=device)
    with torch.profiler.profile(record_shapes=True) as profile:
        torch.ops.tilewise.softmax(x)
        torch.ops.tilewise.matmul(x, x.mT)
    seen = {event.name: event.input_shapes for event in profile.events() if event.name.startswith("tilewise")}
    assert seen["tilewise::softmax"][0] == [3, 4]
    assert seen["tilewise::matmul"][:2] == [[3, 4], [4, 3]]


@pytest.mark.skipif(not native.implement(), reason="not wanted, or this torch has no ABI for it")
@pytest.mark.parametrize("recorded", [False, True])
def test_the_profiler_shows_calls_of_the_functions(device, recorded):
    x = torch.randn(3, 4, device=device, requires_grad=recorded)
    tw.softmax(x)
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in "ab":
            tw.softmax(x, 0)
            tw.add(x, x)
            tw.matmul(x, x.mT, activation="gelu")
    seen = [
        (event.name, event.input_shapes) for event in profile.events() if event.name.startswith("tilewise")
    ]
    two = [[3, 4], [3, 4]]
    assert seen == 2 * [
        ("tilewise::softmax", [[3, 4]]),
        ("tilewise::add", two),
        ("tilewise::matmul", [[3, 4], [4, 3]]),
    ]


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = tw.torch.Linear(4, 8, activation="gelu")
        self.gated = tw.torch.GatedMLP(8, 6)

    def forward(self, x):
        h = self.up(x)
        return tw.log_softmax(tw.add(self.gated(h, h), tw.softmax(h, 0), alpha=2))


def test_an_exported_program_in_torchs_own_operators():
    model, x = Layers(), torch.randn(3, 4)
    program = torch.export.export(model, (x,))
    ours = {op: way for op, way in torch._decomp.decomposition_table.items() if op.namespace == "tilewise"}
    decomposed = program.run_decompositions(ours)
    names = {str(node.target) for node in decomposed.graph.nodes}
    assert any(name.startswith("tilewise") for name in {str(node.target) for node in program.graph.nodes})
    assert not any(name.startswith("tilewise") for name in names)
    torch.testing.assert_close(decomposed.module()(x), model(x))


def test_an_exported_program_is_loaded_where_tilewise_is_imported(tmp_path):
    model, x = Layers(), torch.randn(3, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "layers.pt2")
    torch.save((x, model(x)), tmp_path / "call.pt")
    fresh.run(f"""
        import pathlib, tilewise, torch
        folder = pathlib.Path({str(tmp_path)!r})
        program = torch.export.load(folder / "layers.pt2")
        x, expected = torch.load(folder / "call.pt")
        torch.testing.assert_close(program.module()(x), expected)
    """)


def test_onnx(tmp_path):
    pytest.importorskip("onnxscript")
    model, x = Layers(), torch.randn(3, 4)
    torch.onnx.export(model, (x,), tmp_path / "layers.onnx", dynamo=True, verbose=False)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(tmp_path / "layers.onnx")
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(x).detach(), rtol=1e-4, atol=1e-5)
