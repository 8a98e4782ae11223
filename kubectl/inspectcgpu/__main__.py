"""Entry point of `kubectl-inspect-cgpu` and `python -m inspectcgpu`."""

import gc
import io
import logging
import sys
import warnings

from gpuagent.system.output import exit_with
from inspectcgpu.cli import run
from inspectcgpu.flags import PROG


def complete() -> None:
    """Entry point of `kubectl_complete-inspect-cgpu`, which kubectl runs on TAB."""
    sys.argv[1:1] = ["__complete"]
    main()


def main() -> None:
    """Run the command line and end the process with its exit code."""
    # Errors are shown as results; log lines of the libraries would be noise between the rows.
    logging.getLogger().addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # do not fail on a name that the locale cannot show
    gc.disable()  # the objects of one read have no cycles, and a search for cycles takes a third of the time
    exit_with(PROG, lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()
