"""Doing something when a module has been imported, without importing it.

A finder wraps the module's loader, as importlib.util.LazyLoader does. What is looked for need not be loaded
(importlib.util.find_spec), and a load may fail and be tried again: only a module that has run counts. The
finder stays in sys.meta_path: removing it would make another thread that is walking the list skip the finder
behind it.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_waiting: dict[str, Callable[[], None]] = {}


def after_import(name: str, action: Callable[[], None]) -> None:
    """Calls `action` once: now if the module is there, else right after its import."""
    _waiting[name] = action
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if name in sys.modules:
        with suppress(Exception):
            # Waits for a thread that is importing it. What fails there is that thread's to hear.
            importlib.import_module(name)
        _act(_imported())


def _imported() -> list[str]:
    """What is waited for, and there."""
    specs = [(name, getattr(sys.modules.get(name), "__spec__", None)) for name in list(_waiting)]
    return [name for name, spec in specs if spec and not getattr(spec, "_initializing", False)]


def _act(names: list[str]) -> None:
    for name in names:
        action = _waiting.pop(name, None)
        if action is None:
            continue
        try:
            action()
        except Exception as error:
            # Raised, it would be the import that fails.
            warnings.warn(f"tilewise takes no part in {name}: {error!r}", RuntimeWarning, stacklevel=2)
        except BaseException:
            _waiting[name] = action
            raise


class _Finder:
    """Finds what the finders behind it find, with a loader that acts."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        # A finder in front may have found a module without asking here: then the next import will do.
        names = [name] if name in _waiting else _imported()
        if not names:
            return None
        behind = itertools.dropwhile(lambda finder: finder is not self, list(sys.meta_path))
        next(behind, None)
        for finder in behind:
            spec: Any = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, names)
                return spec
        return None


class _Loader:
    """A module's own loader, which acts when it has run the module."""

    def __init__(self, loader: Any, names: list[str]) -> None:
        self.loader, self.names = loader, names

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        _act(self.names)
