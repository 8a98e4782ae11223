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
    exit_with("gpuagent", lambda: _run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    # After the environment is set.
    if arguments[:1] == ["memory-limits"]:
        # A process with privileges loads only what it needs.
        from gpuagent import limits_command  # noqa: PLC0415 (only this command needs it)

        return limits_command.run(arguments[1:])
    from gpuagent.cli import run  # noqa: PLC0415 (the other commands)

    return run(arguments)


if __name__ == "__main__":
    main()
