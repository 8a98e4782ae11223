"""Code that replaces the machine for itself, and so has to run in a Python of its own."""

import os
import subprocess
import sys


def output_of(code: str, timeout_s: float = 500) -> str:
    """Run the code, with an order of sets that is the same each time, and return what it has printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
