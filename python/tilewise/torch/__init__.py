"""tilewise inside PyTorch: registered operators, gradients, torch.compile, and modules.

Importing this registers torch.ops.tilewise.{add, softmax, log_softmax, matmul, fused_matmul, grouped_matmul}
and the operators of their gradients; fused_matmul is matmul with a gate or a residual. tilewise's own
functions import it for the first call that needs more than the memory of its tensors; user code imports it
for the modules, or to name the operators.

    >>> import tilewise.torch
    >>> layer = tilewise.torch.Linear(512, 2048, activation="gelu")

Schemas and kernels: library.py. The public functions through torch's dispatcher: operators.py. Gradients:
autograd.py. Autocast and vmap: autocast.py, batching.py.
"""

import torch

if not hasattr(torch.library, "register_vmap"):
    raise ImportError(f"tilewise.torch needs torch 2.5 or newer; this is {torch.__version__}")

# All of the package, so that nobody imports a module of it: a thread that did would hold that module's lock
# while it waits for the package's, and one that imports the package the other way around.
# For src/python/routing.rs and ../_dynamo.py:
from . import autocast, autograd, gated, library, operators, recorded  # noqa: F401
from .compile_pass import compile_pass
from .modules import GatedMLP, GroupedLinear, Linear, LogSoftmax, Softmax

library.register()

__all__ = ["GatedMLP", "GroupedLinear", "Linear", "LogSoftmax", "Softmax", "compile_pass"]
