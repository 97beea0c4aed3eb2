"""Every sentence of src/error/mod.rs, word for word, with its class and the builtin it derives from."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import tilewise as tw
import torch
from error_cases import CASES
from support.producer import CUDA, Producer

# Said by other tests, or only by a machine that no test can ask for.
ELSEWHERE = {
    "DevicesDiffer": "cuda/test_devices.py",
    "NoDriver": "python/test_import.py",
    "NoSuchGpu": "needs a producer that lies: below, where there is a driver",
    "GpuTooOld": "needs a GPU older than compute capability 7.5",
    "GpuNotBuiltFor": "needs a build for other GPUs: src/cuda/targets.rs says which",
    "Cuda": "needs a failing driver",
    "OutOfMemory": "python/test_memory_limits.py",
    "NeedsTorch": "no error: such a call goes on in torch, see torch/test_routing.py",
    "Python": "exceptions of the caller's own library: interop/test_producers.py",
}


@pytest.mark.parametrize(("variant", "classes", "message", "call"), CASES, ids=[c[0] for c in CASES])
def test_message(variant, classes, message, call):
    with pytest.raises(tw.TilewiseError) as caught:
        call()
    assert str(caught.value) == message
    assert type(caught.value) is classes[0]
    assert isinstance(caught.value, classes[1])


@pytest.mark.parametrize(("variant", "classes", "message", "call"), CASES, ids=[c[0] for c in CASES])
def test_the_class_is_the_same_where_torch_dispatches_the_call(variant, classes, message, call):
    with torch.device("cpu"), pytest.raises(tw.TilewiseError) as caught:
        call()
    assert type(caught.value) is classes[0]


def test_every_variant_has_its_message_here():
    source = Path(__file__).parents[2] / "src" / "error" / "mod.rs"
    if not source.exists():
        pytest.skip("the sources are not here")
    enum = source.read_text().split("pub enum Error {")[1].split("\n}")[0]
    variants = set(re.findall(r"^    ([A-Z]\w+)\s*[{(,]", enum, re.MULTILINE))
    assert len(variants) > 30
    assert variants == {case[0] for case in CASES} | set(ELSEWHERE)


def test_the_classes():
    for name, builtin in [
        ("DTypeError", TypeError),
        ("ShapeError", ValueError),
        ("DimError", IndexError),
        ("LayoutError", ValueError),
        ("DeviceError", ValueError),
        ("OptionError", ValueError),
        ("UnsupportedError", NotImplementedError),
        ("CudaError", RuntimeError),
        ("OutOfMemoryError", MemoryError),
    ]:
        error = getattr(tw, name)
        assert issubclass(error, tw.TilewiseError)
        assert issubclass(error, builtin)
        assert error.__module__ == "tilewise"
        assert error.__name__ == name
    assert issubclass(tw.DimError, tw.ShapeError)
    assert issubclass(tw.TilewiseError, Exception)


def test_errors_can_be_pickled():
    with pytest.raises(tw.DimError) as caught:
        tw.softmax(torch.ones(2, 3), 9)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is tw.DimError
    assert str(again) == str(caught.value)


def test_a_device_that_is_not_there():
    # A producer may claim any device; what is said depends on the machine.
    said = "there is no cuda:99" if tw.devices() else "no CUDA driver|there is no cuda:99"
    with pytest.raises(tw.DeviceError, match=said):
        tw.add(Producer(np.ones(3), device=(CUDA, 99)), 1)
