"""The output of a command-line program: whether it has colors, and the exit code, also where it cannot be written."""

import errno
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, TextIO

from gpuagent.system.stop_signal import end_as_first_process

INTERRUPTED = 130
"""Exit code as of a program that SIGINT ends."""
PIPE_CLOSED = 141
"""Exit code as of a program that SIGPIPE ends: `gpuagent status | head` needs no error message."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def exit_with(program: str, run: Callable[[], int | str | None]) -> NoReturn:
    """Run `program` and end the process with what `run` returns."""
    end_as_first_process()
    _have_streams()
    try:
        try:
            code = run()
        except SystemExit as ended:  # argparse has shown help, or a mistake
            code = ended.code
        # Here, because an error in the interpreter's own flush at the end could not be caught.
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        code = PIPE_CLOSED
    except OSError as err:
        # An error with a file's name is not that of the output.
        if err.errno not in _FULL or err.filename is not None:
            raise
        print(f"{program}: the output cannot be written: {err.strerror}", file=sys.stderr)
        _drop_output()
        code = 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def has_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether to use colors: on a terminal, unless NO_COLOR is set or the terminal is a dumb one."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def terminal_columns(stream: TextIO) -> int | None:
    """Width of the terminal that `stream` is; None if it is none, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:
        return None


def _have_streams() -> None:
    """Open /dev/null for each closed standard stream (``>&-``): otherwise a file or socket would get its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (until the end)


def _drop_output() -> None:
    """Discard pending output, which the interpreter would otherwise fail to write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
