"""What an import costs and needs. Each test is a process of its own."""

import ctypes
import importlib.util
import sys

import pytest
import tilewise as tw
from support import fresh
from support.producer import CUDA, Producer

BLOCK = """
    import sys

    class Block:
        def __init__(self, *names):
            self.names = names

        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in self.names:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def block(*names):
        sys.meta_path.insert(0, Block(*names))
"""


def test_import_loads_neither_torch_nor_numpy_nor_a_cuda_library():
    fresh.run("""
        import sys
        import tilewise
        for name in ("torch", "numpy", "cupy", "jax", "triton", "rich", "matplotlib"):
            assert name not in sys.modules, name
        maps = open("/proc/self/maps").read()
        for library in ("libcuda", "libcudart", "libnvrtc", "libtorch", "libc10", "libnvidia", "libcublas"):
            assert library not in maps, library
    """)


def test_the_layers_are_imported_when_first_asked_for():
    fresh.run("""
        import sys
        import tilewise
        assert "tilewise.torch" not in sys.modules
        assert tilewise.torch.Linear(2, 3).weight.shape == (3, 2)
    """)


@pytest.mark.skipif(
    importlib.util.find_spec("_xxsubinterpreters") is None, reason="Python 3.13 and newer name it otherwise"
)
def test_a_subinterpreter_is_refused():
    printed = fresh.run("""
        import _xxsubinterpreters as interpreters
        other = interpreters.create()
        code = "try:\\n import tilewise\\nexcept ImportError as error:\\n print(error, flush=True)"
        interpreters.run_string(other, code)
        import tilewise
        interpreters.run_string(other, code)
    """)
    # Python 3.12 refuses by itself what does not say that it may be loaded there.
    old = sys.version_info < (3, 12)
    words = "main interpreter only" if old else "does not support loading in subinterpreters"
    assert printed.count(words) == 2


def test_import_starts_no_thread_and_touches_no_gpu():
    fresh.run("""
        import os
        import tilewise
        assert len(os.listdir("/proc/self/task")) == 1
        assert not any("nvidia" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                       if os.path.exists(f"/proc/self/fd/{fd}"))
    """)


def test_import_is_silent():
    assert fresh.run("import tilewise") == ""


def test_everything_promised_is_there():
    fresh.run("""
        import tilewise as tw
        functions = "add softmax log_softmax matmul explain devices info"
        errors = "Tilewise DType Shape Dim Layout Device Option Unsupported Cuda"
        assert set(tw.__all__) <= set(dir(tw))
        for name in [*functions.split(), *(f"{error}Error" for error in errors.split())]:
            assert name in tw.__all__, name
            assert getattr(tw, name).__doc__, name
        assert tw.__version__.count(".") == 2
        for name in tw.__all__:
            getattr(tw, name)
    """)


def test_what_completion_offers_is_there():
    for package in ("numpy", "scipy", "torch"):
        pytest.importorskip(package)
    fresh.run_after_torch("""
        import tilewise as tw
        assert {"bench", "latency", "torch"} <= set(dir(tw))
        for name in dir(tw):
            getattr(tw, name)
    """)


def test_without_scipy_nothing_is_offered_that_needs_it():
    fresh.run("""
    import inspect, sys
    sys.modules["scipy"] = None
    import tilewise as tw
    assert "latency" not in dict(inspect.getmembers(tw))
    try:
        tw.latency
    except ModuleNotFoundError as error:
        assert "pip install " in str(error)
    else:
        raise AssertionError
    """)


def test_numpy_is_enough():
    pytest.importorskip("numpy")
    fresh.run(
        BLOCK
        + """
    block("torch")
    import numpy as np
    import tilewise as tw
    x = np.arange(6.0).reshape(2, 3)
    assert (tw.add(x, x) == 2 * x).all()
    assert (tw.matmul(x, x.T) == x @ x.T).all()
    assert abs(tw.softmax(x).sum() - 2) < 1e-12
    assert "torch" not in sys.modules
    """
    )


def test_torch_without_numpy():
    pytest.importorskip("torch")
    fresh.run(
        BLOCK
        + """
    block("numpy")
    import warnings
    warnings.simplefilter("ignore")
    import torch
    import tilewise as tw
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(tw.add(x, x), 2 * x)
    assert torch.equal(tw.matmul(x, x.mT), x @ x.mT)
    assert "numpy" not in sys.modules
    """
    )


def test_neither_torch_nor_numpy():
    fresh.run(
        BLOCK
        + """
    block("torch", "numpy")
    import tilewise as tw
    try:
        tw.add([1.0], [2.0])
    except tw.DTypeError as error:
        assert "list" in str(error)
    else:
        raise AssertionError("a list is no tensor")
    """
    )


@pytest.mark.parametrize("first", ["tilewise", "torch"])
def test_the_order_of_imports_does_not_matter(first):
    pytest.importorskip("torch")
    run = fresh.run if first == "tilewise" else fresh.run_after_torch
    run("""
        import tilewise, torch
        assert torch.equal(tilewise.add(torch.ones(3), 1), torch.full((3,), 2.0))
    """)


def test_a_module_that_is_called_torch_but_is_not():
    fresh.run("""
        import sys, types
        sys.modules["torch"] = types.ModuleType("torch")
        sys.modules["numpy"] = types.ModuleType("numpy")
        import tilewise as tw
        try:
            tw.add(object(), 1)
        except tw.DTypeError:
            pass
    """)


def test_with_every_gpu_hidden():
    pytest.importorskip("torch")
    out = fresh.run_after_torch("""
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import torch, tilewise as tw
        assert torch.equal(tw.add(torch.ones(3), 1), torch.full((3,), 2.0))
        print(tw.devices())
        tw.info()
    """)
    assert out == "[]\n"


def test_info_and_devices_never_raise():
    out = fresh.run("import tilewise as tw; tw.devices(); print(tw.info())")
    assert "tilewise" in out
    assert tw.__version__ in out


def test_info_from_the_command_line():
    fresh.run("""
        import subprocess, sys
        done = subprocess.run([sys.executable, "-m", "tilewise.info"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "tilewise" in done.stdout
        assert "Traceback" not in done.stdout + done.stderr
    """)


def test_a_cuda_tensor_without_a_driver_is_told_plainly():
    np = pytest.importorskip("numpy")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("there is a CUDA driver here")
    producer = Producer(np.ones(4, "f4"), device=(CUDA, 0))
    with pytest.raises(tw.DeviceError, match="no CUDA driver could be loaded") as caught:
        tw.add(producer, producer)
    assert "move the tensors to the CPU" in str(caught.value)
    assert producer.deleted == producer.exported
