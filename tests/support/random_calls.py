"""Random calls of every operation, compared with float64: up to millions of elements, any view, any `out`.

    python tests/support/random_calls.py --seconds 120 --seed 1000     one call for each seed from there on
    python tests/support/random_calls.py --seed 1234 --calls 1         one of them again

Ends with 1 if a call raised or was wrong.
"""

import argparse
import itertools
import math
import random
import sys
import time
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewise as tw
from tilewise._core import activation_backward

from support import backward, reference, views
from support.guarded import Guarded
from support.tolerance import FLOATS, assert_rounded

SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 6e4]
SUBNORMAL = [1e-40, -3e-39]
OF_16_BITS = [torch.float16, torch.bfloat16]
# Where kernels change their way, and their neighbours.
EDGES = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 72, 96, 127, 128, 129, 192, 255, 256]
EDGES += [257, 264, 384, 511, 512, 513, 520, 1000, 1024, 1032, 2048, 4096]


class Call:
    """A call made of one seed, on one device."""

    def __init__(self, seed, device):
        self.random = random.Random(seed)
        self.device = device
        self.specials = SPECIAL + SUBNORMAL
        torch.manual_seed(seed)

    def chance(self, share):
        return self.random.random() < share

    def size(self, most):
        if self.chance(0.5):
            return min(most, self.random.choice(EDGES))
        return round(math.exp(self.random.uniform(0, math.log(most))))

    def shape(self, elements, rank):
        """Of at most so many elements and dimensions."""
        sizes = []
        for _ in range(self.random.randint(1, rank)):
            sizes.append(self.size(max(1, min(20_000, elements))))
            elements //= sizes[-1]
        if self.chance(0.01):
            sizes[0] = 0
        self.random.shuffle(sizes)
        return sizes

    def tensor(self, shape, dtype):
        """Normal numbers, numbers of one sign, or mostly zeros; some with a few special values among them."""
        kind = self.random.random()
        x = torch.rand(shape, device=self.device) if kind < 0.1 else torch.randn(shape, device=self.device)
        if kind > 0.9:
            x *= torch.rand(shape, device=self.device) < 0.1
        x = x.to(dtype)
        if x.numel() and self.specials and self.chance(0.1):
            for _ in range(self.random.randint(1, 4)):
                x.view(-1)[self.random.randrange(x.numel())] = self.random.choice(self.specials)
        return x

    def view(self, x, makers=views.MAKERS):
        if x.dim() and self.chance(0.05):
            return self.expanded(x)
        return x if self.chance(0.4) else self.random.choice(makers)(x)

    def expanded(self, x):
        """The first of a dimension in place of all."""
        dim = self.random.randrange(x.dim())
        return x.narrow(dim, 0, min(1, x.shape[dim])).expand(x.shape)

    def operand(self, shape, dtype):
        return self.view(self.tensor(shape, dtype))

    def matrix(self, shape, dtype):
        x = self.operand(shape, dtype)
        return x.mT.contiguous().mT if self.chance(0.25) else x

    def like(self, x):
        """Other numbers in the same order in memory."""
        return torch.empty_like(x).copy_(self.tensor(x.shape, x.dtype))

    def out(self, shape, dtype):
        """None, or an `out` between guards."""
        if self.chance(0.4):
            return None
        cuts = [cut for cut in Guarded.CUTS if cut != "transposed" or len(shape) > 1]
        return Guarded(shape, dtype, self.device, self.random.choice(cuts))

    def check(self, function, arguments, options, guarded, expected, error, context):
        """Makes the call, and compares."""
        if guarded is not None:
            options = {**options, "out": guarded.out}
        got = function(*arguments, **options)
        assert_rounded(got, expected, error, context)
        if guarded is not None:
            assert got is guarded.out
            guarded.assert_rest_untouched()


def layout(*tensors):
    return " ".join(f"{tuple(x.shape)} of strides {x.stride()}" for x in tensors)


def sums_of_one_sign(error, dtype):
    """Tensor cores cut off what they add, which shows where all terms have one sign."""
    return 3 * error if dtype in OF_16_BITS else error


def matmul(call):
    dtype = call.random.choice([*OF_16_BITS, *FLOATS])
    most, operations = (6000, 3e9) if dtype in OF_16_BITS else (2500, 6e8)
    if call.device == "cpu":
        operations /= 20
    m, n, k = (call.size(128 if call.chance(share) else most) for share in (0.3, 0.1, 0.1))
    while m * n * k > operations or m * n > 8e6:
        m, n, k = max(1, m // 2), max(1, n * 2 // 3), max(1, k * 2 // 3)
    k = 0 if call.chance(0.01) else k
    batch = [call.random.randint(1, 5)] if call.chance(0.3) else []
    is_gated, tf32 = call.chance(0.2), dtype == torch.float32 and call.chance(0.3)
    if is_gated:
        # A gate may vanish in one arithmetic and not in another, which shows if it meets infinity.
        call.specials = []
    elif tf32 or (dtype == torch.bfloat16 and call.device == "cpu"):
        # Subnormal numbers lose bits as TF32, and are zeros for some bfloat16 instructions of CPUs.
        call.specials = SPECIAL
    a = call.matrix([*batch, m, k] if call.chance(0.8) else [m, k], dtype)
    b = call.matrix([*batch, k, n] if call.chance(0.8) else [k, n], dtype)
    shape = [*(batch if a.dim() + b.dim() > 4 else []), m, n]
    options = {"activation": call.random.choice(list(reference.ACTIVATIONS))}
    if is_gated:
        options["gate"] = call.operand(b.shape, dtype) if call.chance(0.3) else call.like(b)
    if call.chance(0.4):
        options["bias"] = call.operand([2, n] if "gate" in options else [n], dtype)
    if call.chance(0.2):
        options["residual"] = call.operand(shape, dtype)
    expected, error = reference.matmul(a, b, tf32=tf32, **options)
    context = f"{dtype} {layout(a, b)} {options['activation']} {list(options)} {tf32}"
    options["precision"] = "tf32" if tf32 else "ieee"
    out = call.out(shape, dtype)
    call.check(tw.matmul, (a, b), options, out, expected, sums_of_one_sign(error, dtype), context)


def grouped_matmul(call):
    dtype, groups = call.random.choice([*OF_16_BITS, *FLOATS]), call.random.choice([1, 2, 3, 8, 40])
    n, k = call.size(700), call.size(700)
    sizes = [call.random.choice([0, 1, 3, call.size(300)]) for _ in range(groups)]
    total = sum(sizes) + call.random.choice([0, 0, 5])
    options = {"activation": call.random.choice(list(reference.ACTIVATIONS))}
    is_gated = call.chance(0.12)
    if is_gated:
        call.specials = []  # as of a matmul's gate
    elif dtype == torch.bfloat16 and call.device == "cpu":
        call.specials = SPECIAL
    if is_gated or call.chance(0.6):
        a = call.view(call.tensor([total, k], dtype), views.MATRIX_MAKERS)
        b = call.tensor([groups, k, n], dtype)
        b = b.mT.contiguous().mT if call.chance(0.5) else b
        if is_gated:
            options["gate"] = call.like(b)
    else:
        a, b = call.tensor([k, total], dtype), call.tensor([total, n], dtype)
        a, b = (x.T.contiguous().T if call.chance(0.5) else x for x in (a, b))
    if call.chance(0.4):
        options["bias"] = call.tensor([groups, 2, n] if "gate" in options else [groups, n], dtype)
    offsets = torch.tensor(sizes, device=call.device).cumsum(0).to(torch.int32)
    expected, error = reference.grouped_matmul(a, b, offsets, **options)
    context = f"{dtype} {layout(a, b)} {sizes} {options['activation']} {list(options)}"
    error = sums_of_one_sign(error, dtype)
    call.check(tw.grouped_matmul, (a, b, offsets), options, None, expected, error, context)


def softmax(call):
    op, dtype = call.random.choice(list(reference.SOFTMAX)), call.random.choice(FLOATS)
    target = call.random.choice([None, None, *FLOATS])
    shape = call.shape(3_000_000, 4)
    dim = call.random.randrange(len(shape))
    x = call.view(call.tensor(shape, dtype) * call.random.choice([1, 1, 5]))
    expected, error = reference.SOFTMAX[op](x, dim, target)
    context = f"{op} {dtype} to {target} {layout(x)} dim {dim}"
    out = call.out(shape, target or dtype)
    call.check(getattr(tw, op), (x, dim), {"dtype": target}, out, expected, error, context)


def softmax_backward(call):
    op, dtype = call.random.choice(list(reference.SOFTMAX)), call.random.choice(FLOATS)
    shape = call.shape(2_000_000, 4)
    dim = call.random.randrange(len(shape))
    output = call.view(getattr(torch, op)(call.tensor(shape, torch.float32), dim).to(dtype))
    grad = call.operand(shape, dtype)
    expected, error = backward.softmax(op, grad, output, dim)
    context = f"{op}_backward {dtype} {layout(grad, output)} dim {dim}"
    function, out = getattr(tw, f"{op}_backward"), call.out(shape, dtype)
    call.check(function, (grad, output, dim), {}, out, expected, error, context)


def add(call):
    dtype, shape = call.random.choice(FLOATS), call.shape(4_000_000, 5)
    smaller = [n if call.chance(0.8) else 1 for n in shape]
    if call.chance(0.2):
        smaller = smaller[call.random.randrange(len(shape)) :]
    x, y = call.operand(shape, dtype), call.operand(smaller, dtype)
    if call.chance(0.3):
        x, y = y, x
    alpha = call.random.choice([1, 1, -2.5])
    context = f"{dtype} {layout(x, y)} alpha {alpha}"
    out = call.out(shape, dtype)
    call.check(tw.add, (x, y), {"alpha": alpha}, out, *reference.add(x, y, dtype, alpha), context)


def gradients_of_an_activation(call):
    dtype, shape = call.random.choice(FLOATS), call.shape(1_500_000, 3)
    activation = call.random.choice([name for name in reference.ACTIVATIONS if name])
    dense, is_gated = [views.contiguous, views.misaligned], call.chance(0.5)
    if is_gated:
        call.specials = []  # as of a matmul's gate
    grad = call.random.choice(dense)(call.tensor(shape, dtype))
    saved = 3 * call.tensor(shape, dtype)
    context = f"{activation}_backward {dtype} {shape}"
    options = {"saved_is": "pre_activation"}
    if not is_gated:
        saved = call.random.choice(dense)(saved)
        expected, error = backward.activation(grad, saved, activation)
        wanted = call.chance(0.5)
        got, bias = activation_backward(grad, saved, activation, bias=wanted, **options)
        assert_rounded(got, expected, error, context)
        if wanted:
            assert_rounded(bias, *backward.column_sums(expected, error, dtype), f"{context} bias")
        return
    up = call.tensor(shape, dtype)
    got = activation_backward(grad, saved, activation, up=up, **options)
    for result, expected in zip(got, backward.gated(grad, saved, up, activation), strict=True):
        assert_rounded(result, *expected, f"{context} gated")


KINDS = [matmul, grouped_matmul, softmax, softmax_backward, add, gradients_of_an_activation]
WEIGHTS = [4, 1, 1, 1, 1, 1]


def make(seed, device):
    call = Call(seed, device)
    call.random.choices(KINDS, WEIGHTS)[0](call)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--calls", type=int, help="at most")
    parser.add_argument("--seconds", type=float, default=60, help="at most")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    seeds = (
        itertools.count(options.seed)
        if options.calls is None
        else range(options.seed, options.seed + options.calls)
    )
    end, made, wrong = time.monotonic() + options.seconds, 0, 0
    for seed in seeds:
        if time.monotonic() > end:
            break
        made += 1
        try:
            make(seed, options.device)
        except Exception as failure:
            wrong += 1
            print(f"seed {seed}: {type(failure).__name__}: {failure}", flush=True)
        if options.device == "cuda" and made % 20 == 0:
            torch.cuda.empty_cache()  # for processes beside this one
    print(f"{made} calls, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
