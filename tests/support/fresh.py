"""Runs Python code in a process of its own."""

import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path


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
    return printed(done.returncode, done.stdout, done.stderr)


def run_after_torch(code, **environment):
    """The same in a process in which torch has been imported, and nothing of tilewise: a fork of one that
    waits with it, for the import takes longer than most code. Not for calls on torch's threads, which
    tilewise leaves alone in a forked child."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = (Path(folder, name) for name in ("stdout", "stderr"))
        request = {"code": textwrap.dedent(code), "stdout": str(stdout), "stderr": str(stderr)}
        request["environment"] = environment
        process = with_torch()
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        status = process.stdout.readline()
        assert status, "the process with torch ended"
        return printed(int(status), stdout.read_text(), stderr.read_text())


def printed(status, stdout, stderr):
    assert status == 0, f"exit {status}\n{stdout}\n{stderr}"
    return stdout


# Forks for each line; the child goes on behind the loop, and ends as any process does.
WITH_TORCH = """
import json, os, signal, sys
import torch
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
request = json.loads(line)
for fd, name in ((1, "stdout"), (2, "stderr")):
    os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT), fd)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
signal.alarm(300)
os.environ.update(request["environment"])
exec(request["code"])
"""


@functools.cache
def with_torch():
    # It ends with the end of its standard input, which is the end of this process.
    return subprocess.Popen(
        [sys.executable, "-c", WITH_TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
