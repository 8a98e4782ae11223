"""Entry point of `kubectl-inspect-cgpu` and `python -m inspectcgpu`."""

import sys

from inspectcgpu.cli import run


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
