"""Entry point of `gpuagent` and `python -m gpuagent`."""

import ctypes
import os
import sys
from contextlib import suppress

from gpuagent.system.output import exit_with

# Both are read once, when grpc is imported: its fork handlers crash children, its C core logs past `logging`.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_M_ARENA_MAX = -8  # glibc's malloc.h


def _few_arenas() -> None:
    """Keep glibc from giving most threads a heap of their own: forty threads that do little would hold 1 MiB more."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    _few_arenas()
    from gpuagent.cli import run  # noqa: PLC0415 (after the environment is set)

    exit_with("gpuagent", lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()
