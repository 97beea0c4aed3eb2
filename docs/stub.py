"""Writes the docstrings of the compiled module, whose source is Rust, into its stub: for editors and site.

python docs/stub.py            write them into python/tilewise/_core.pyi
python docs/stub.py --check    write nothing, and exit with 1 if the stub says anything else
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

from tilewise import _core

STUB = Path(__file__).resolve().parents[1] / "python/tilewise/_core.pyi"


def documented(stub: str) -> str:
    """The stub with the docstring of every function and class that the module has."""
    lines = stub.splitlines(keepends=True)
    named = [node for node in ast.parse(stub).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    # Of overloads the first alone.
    for node in {node.name: node for node in reversed(named)}.values():
        text = getattr(getattr(_core, node.name, None), "__doc__", None)
        # A type that is only the stub's has its comments there.
        if text is None or "type_check_only" in map(ast.unparse, node.decorator_list):
            continue
        body = [f"    {line}".rstrip() for line in inspect.cleandoc(text).splitlines()]
        first, last = node.body[0], node.body[-1]
        begin, end = first.lineno - 1, last.end_lineno or last.lineno
        # `...` may stand behind the signature, on its line.
        lines[begin:end] = [
            lines[begin][: first.col_offset].rstrip() + "\n" * bool(lines[begin][: first.col_offset].strip()),
            '    """' + "\n".join(body).lstrip() + ('\n    """\n' if len(body) > 1 else '"""\n'),
        ]
    return "".join(lines)


def main(arguments: list[str]) -> int:
    before = STUB.read_text()
    after = documented(before)
    if arguments == ["--check"]:
        return int(before != after)
    STUB.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
