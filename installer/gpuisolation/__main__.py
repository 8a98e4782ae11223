"""Entry point of `gpu-isolation-installer` and `python -m gpuisolation`."""

import sys

from gpuagent.system.output import exit_with
from gpuisolation.cli import run


def main() -> None:
    """Run the command line and end the process with its exit code."""
    exit_with("gpu-isolation-installer", lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()
