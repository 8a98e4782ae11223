"""Entry point of `gpuagent` and `python -m gpuagent`."""

import os
import sys

# Both are read once, when grpc is imported: its fork handlers crash children, its C core logs past `logging`.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def main() -> None:
    """Run the command line and end the process with its exit code."""
    from gpuagent.cli import run  # noqa: PLC0415 (after the environment is set)

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
