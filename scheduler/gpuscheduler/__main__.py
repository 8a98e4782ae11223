"""Entry point of `gpuscheduler` and `python -m gpuscheduler`."""

import sys

from gpuagent.system.output import exit_with
from gpuscheduler.cli import run


def main() -> None:
    """Run the command line and end the process with its exit code."""
    exit_with("gpuscheduler", lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()
