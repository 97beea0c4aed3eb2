"""compile_pass as an object of torch 2.6 and newer, whose caches of compiled code know it by its uuid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from .compile_pass import fuse


class GraphPass(CustomGraphPass):
    def __call__(self, graph: torch.fx.Graph) -> None:
        fuse(graph)

    def uuid(self) -> Any:
        return get_hash_for_files(
            (str(Path(__file__).with_name("compile_pass.py")),), torch.get_float32_matmul_precision()
        )

    def __reduce__(self) -> Any:
        # torch 2.11 makes its key of the pass from what pickle writes.
        return GraphPass, (), {"key": self.uuid()}
