"""Runs the calls of tests/cuda/kernel_cases.py on the emulator, and compares the results with float64, and
what was launched with what tilewise.explain says of the call.

    python tests/emulator/run_cases.py                      as on an H200 of 4 multiprocessors
    python tests/emulator/run_cases.py -d t4 -s 7 softmax   some, on a T4, threads in another order

Ends with 1 if a result is wrong, a launch failed, or a kernel of the build was launched by none of the cases.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from pathlib import Path

import host_build

TESTS = Path(__file__).resolve().parents[1]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prefix", nargs="?", default="", help="of the names of the cases")
    parser.add_argument("-d", "--device", default="h200", choices=host_build.DEVICES)
    parser.add_argument("-m", "--multiprocessors", default="4", help="0: as many as the device has")
    parser.add_argument("--without", default="", help="these dtypes, as float16,float64: no case, no kernel")
    parser.add_argument("-s", "--seed", type=int, default=0, help="of the order in which threads run")
    options = parser.parse_args()
    options.without = options.without.split(",") if options.without else []
    return options


def restart_on_the_emulator(options: argparse.Namespace) -> None:
    """The loader reads LD_LIBRARY_PATH when a process starts."""
    if "TILEWISE_EMULATED_DEVICE" in os.environ:
        return
    # Of the cases' operations, the two that have files of their own alone.
    operation = options.prefix.split(" ")[0]
    operation = operation if operation in ("softmax", "matmul") else ""
    built = host_build.environment(options.device, options.multiprocessors, operation, options.without)
    os.environ.update(built)
    os.environ["TILEWISE_LOG"] = "launch"
    os.execv(sys.executable, [sys.executable, *sys.argv])


def checked(name: str, function):
    """`function`, followed by a comparison with its reference."""
    import torch
    from support import backward, reference
    from support.tolerance import assert_identical, assert_rounded

    def call(*args, **kwargs):
        options = {k: v for k, v in kwargs.items() if k != "out"}
        if options.get("residual") is not None:  # which may be `out`
            options["residual"] = options["residual"].clone()
        got = function(*args, **kwargs)
        if isinstance(got, list):
            biases, gates = (kwargs.get(name) or [None] * len(got) for name in ("bias", "gate"))
            for one, a, b, bias, gate in zip(got, *args, biases, gates, strict=True):
                assert_rounded(one, *reference.matmul(a, b, bias, kwargs.get("activation"), gate=gate))
            return got
        if not got.dtype.is_floating_point:
            assert_identical(got, torch.add(*args))
            return got
        if name == "add":
            options["dtype"] = got.dtype
        if options.pop("precision", None) == "tf32":
            options["tf32"] = True
        if name.endswith("_backward"):
            expected, error = backward.softmax(name.removesuffix("_backward"), *args, **options)
        else:
            expected, error = getattr(reference, name)(*args, **options)
        assert_rounded(got, expected, error)
        return got

    call.__name__ = name
    return call


def checked_gradients(function):
    """activation_backward, followed by a comparison of its results."""
    from support import backward
    from support.tolerance import assert_rounded

    @functools.wraps(function)
    def call(grad, saved, activation, **options):
        got, bias, *biases = function(grad, saved, activation, **options)
        if "up" in options:
            both = backward.gated(grad, saved, options["up"], activation)
            for result, expected in zip((got, bias), both, strict=True):
                assert_rounded(result, *expected)
            for sums, expected in zip(*biases, both, strict=True) if biases else ():
                assert_rounded(sums, *backward.column_sums(*expected, grad.dtype))
            return got, bias
        expected, error = backward.activation(grad, grad if saved is None else saved, activation)
        assert_rounded(got, expected, error)
        if bias is not None:
            assert_rounded(bias, *backward.column_sums(expected, error, grad.dtype))
        return got, bias

    return call


def checked_training(function):
    """matmul_for_training, followed by a comparison of its three results."""
    from support import reference
    from support.tolerance import assert_rounded

    @functools.wraps(function)
    def call(a, b, gate, bias=None, activation=None):
        results = function(a, b, gate, bias, activation=activation)
        of_gate, of_up = (None, None) if bias is None else bias
        expected = (
            reference.matmul(a, b, bias, activation, gate=gate),
            reference.matmul(a, gate, of_gate),
            reference.matmul(a, b, of_up),
        )
        for result, one in zip(results, expected, strict=True):
            assert_rounded(result, *one)
        return results

    return call


def main() -> int:
    options = arguments()
    restart_on_the_emulator(options)
    sys.path[:0] = [str(TESTS), str(TESTS / "cuda")]
    import arrays
    import kernel_cases
    import launch_log
    import operations
    import tilewise

    operations.install()
    launch_log.watch()
    arrays.set_seed(options.seed)
    kernel_cases.DEVICE = "cpu"
    kernel_cases.FEW = (520, 136)
    kernel_cases.LENGTHS = [5, 8, 128, 257, 400, 781, 2048, 9001]
    # These make four multiprocessors choose every tile.
    kernel_cases.FILLING = [(24, 248, 72), (250, 376, 72), (256, 512, 72), (72, 248, 40), (511, 513, 33)]
    for name in operations.NAMES:
        setattr(tilewise, name, checked(name, getattr(tilewise, name)))
    core = tilewise._core
    core.activation_backward = checked_gradients(core.activation_backward)
    core.matmul_for_training = checked_training(core.matmul_for_training)

    wrong = count = 0
    for name, call in kernel_cases.cases():
        dtypes = re.findall(r"torch\.(\w+)", name)
        if not name.startswith(options.prefix) or any(dtype in options.without for dtype in dtypes):
            continue
        count += 1
        try:
            call()
        except (AssertionError, tilewise.CudaError) as failure:
            wrong += 1
            print(f"{name}: {failure}")
    left_out = {host_build.DTYPES[dtype] for dtype in options.without}
    unused = [
        kernel
        for kernel, launches in arrays.launches().items()
        if launches == 0
        and kernel.startswith(options.prefix)
        and not left_out.intersection(kernel.split("_"))
    ]
    if unused:
        print(f"never launched: {', '.join(unused)}")
        wrong += 1
    print(f"{count} calls, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
