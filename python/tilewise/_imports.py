"""Doing something when a module has been imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def after_import(name: str, action: Callable[[], None]) -> None:
    """Calls `action` once: now if the module is there, else right after its import."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watch(name, action))


class _Watch:
    """Finds no modules; when its own is looked for, goes away and lets it be found as it would be."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec else None
        if loader is not None:
            execute = loader.exec_module

            def execute_and_act(module: Any) -> None:
                execute(module)
                self.action()

            loader.exec_module = execute_and_act
        return spec
