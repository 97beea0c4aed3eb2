"""torch.compile traces the operators' Python in place of the functions themselves, which it cannot look into.

torch.compiler.substitute_in_graph says so, but calling it imports all of Dynamo, and tilewise is to be
imported without torch. So it is said when Dynamo is there: at once, or right after its import, which
comes before the first function is traced. An import hook is the one way to hear of that: neither torch
nor Dynamo calls back.
"""

from __future__ import annotations

from ._imports import after_import

NAMES = (
    "add",
    "softmax",
    "log_softmax",
    "matmul",
    "grouped_matmul",
    "softmax_backward",
    "log_softmax_backward",
    "activation_backward",
)


def register() -> None:
    import torch

    # Before 2.5 a call is a graph break; failing here would fail the import of Dynamo.
    if not hasattr(torch.compiler, "substitute_in_graph") or not hasattr(torch.library, "register_vmap"):
        return

    from . import _core
    from .torch import operators

    for name in NAMES:
        torch.compiler.substitute_in_graph(getattr(_core, name))(getattr(operators, name))


after_import("torch._dynamo", register)
