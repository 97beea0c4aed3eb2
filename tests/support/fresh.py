"""Runs Python code in a process of its own."""

import os
import subprocess
import sys
import textwrap


def run(code, *, seconds=300, **environment):
    """What `code` printed; fails with its standard error. A variable set to None is removed."""
    env = dict(os.environ)
    for key, value in environment.items():
        env.pop(key, None)
        if value is not None:
            env[key] = value
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
