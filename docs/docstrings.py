"""Reads the house's docstrings as Google's: what `help()` shows stays shorter than what the parser wants."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Module, Object

TRANSLATIONS = (
    # An "Example:" would be prose, and its results references.
    (r"^Example:$", "Examples:"),
    (r"^(Raises:\n +)As ", r"\1TilewiseError: as "),
    (r"^( +)\*args, \*\*kwargs:", r"\1*args:"),
)


class House(Extension):  # type: ignore[misc]  # griffe need not be installed to check our types
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            for pattern, text in TRANSLATIONS:
                obj.docstring.value = re.sub(pattern, text, obj.docstring.value, flags=re.MULTILINE)

    def on_module_members(self, *, mod: Module, **_: Any) -> None:
        """A stub has overloads and no function that they are of: the first stands for it."""
        for name, overloads in mod.overloads.items():
            if name not in mod.members and overloads:
                mod.set_member(name, overloads[0])
