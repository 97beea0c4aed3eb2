"""`python -m tilewise.bench OPERATION...|all`: tilewise beside its peers."""

from __future__ import annotations

import sys

from . import INTERRUPTED, NOTHING_MEASURED


def main(arguments: list[str]) -> int:
    try:
        # Here, since importing takes long enough to be interrupted.
        from . import command

        return command.run(arguments)
    except KeyboardInterrupt:
        print(NOTHING_MEASURED, file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
