"""Output files and folders of commands, as types for argparse: refused before the work and not after it."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from pathlib import Path

PICTURES = (".png", ".svg", ".pdf")


def file(text: str) -> Path:
    """A file to be written in a folder that is there."""
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder: name a file")
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    return _writable(path, path if path.exists() else path.parent)


def picture(text: str) -> Path:
    """The same, with an ending that says how it is drawn."""
    if Path(text).suffix.lower() not in PICTURES:
        raise ArgumentTypeError(f"{text}: the file's ending must be one of {', '.join(PICTURES)}")
    return file(text)


def folder(text: str) -> Path:
    """A folder to write into, to be made where it is not there."""
    path = Path(text)
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir():
        raise ArgumentTypeError(f"{text}: {there} is not a folder")
    return _writable(path, there)


def _writable(path: Path, there: Path) -> Path:
    if not os.access(there, os.W_OK):
        raise ArgumentTypeError(f"{path}: {there} is not writable")
    return path
