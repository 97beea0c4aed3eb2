"""Reads the house's docstrings as Google's: what `help()` shows stays shorter than what the parser wants."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

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
