"""A real client of MPS: whether CUDA still serves a new program, which the control daemon does not show.

After a client was killed with work on the GPU, a server may take no new client, while its control daemon answers every
command. Only a program that makes a context sees this. That program is this file, run by `CudaProbe`. It may hang in
the driver, so it is a process of its own, and it loads nothing but the standard library.
"""

import ctypes
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

LIBRARY = "libcuda.so.1"
DEADLINE_S = 10.0
_END_S = 1.0

SERVED = frozenset({0, 2, 808, 809})
"""Results of the driver API for a server that works: success, out of memory, too many clients, too many connections."""
NOT_SERVED = frozenset({46, 805, 806, 807})
"""Results for one that does not: device unavailable, connection to MPS failed, its RPC failed, server not ready."""


class Verdict(Enum):
    """What a probe shows."""

    SERVED = "served"
    """A new program gets a context, or is refused for lack of room."""
    HANGS = "hangs"
    """A new program gets no context."""
    UNKNOWN = "unknown"
    """The probe itself does not work here."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe; `text` says what CUDA did."""

    verdict: Verdict
    text: str


class CudaProbe:
    """Makes a context on one GPU through an MPS daemon. May be used from any thread; one probe runs at a time.

    Args:
        command: prints the result, as this file does.
        deadline_s: how long a program may wait for its context.
    """

    def __init__(self, command: tuple[str, ...] = (), *, deadline_s: float = DEADLINE_S) -> None:
        self._command = command or (sys.executable, "-S", "-E", __file__)
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._former: subprocess.Popen[str] | None = None

    def run(self, pipe_dir: Path, uuid: str) -> Probed:
        """Probe the daemon at `pipe_dir` with a program that sees this GPU."""
        with self._lock:
            former = self._former
            if former is not None and former.poll() is None:
                # It cannot be ended, as it waits in the driver. A second one would join it.
                return Probed(Verdict.HANGS, f"the last probe, process {former.pid}, cannot be ended")
            return self._run(pipe_dir, uuid)

    def _run(self, pipe_dir: Path, uuid: str) -> Probed:
        env = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        env |= {"CUDA_MPS_PIPE_DIRECTORY": str(pipe_dir), "CUDA_VISIBLE_DEVICES": uuid}
        try:
            process = subprocess.Popen(  # noqa: S603 (this file)
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as err:
            return Probed(Verdict.UNKNOWN, f"the probe cannot be run: {err.strerror}")
        self._former = process
        try:
            answer, _ = process.communicate(timeout=self._deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            if process.stdout:
                process.stdout.close()
            return Probed(Verdict.HANGS, f"a new program gets no answer within {self._deadline_s:g} s")
        return _result(answer.strip())


def _result(answer: str) -> Probed:
    """Read what the program printed."""
    word, _, number = answer.rpartition(" ")
    if not number.isdecimal():
        return Probed(Verdict.UNKNOWN, f"the probe ended with {answer!r}")
    code = int(number)
    if code in SERVED:
        return Probed(Verdict.SERVED, answer)
    if code in NOT_SERVED:
        return Probed(Verdict.HANGS, f"{word} fails with CUDA error {code}")
    return Probed(Verdict.UNKNOWN, f"{word} fails with CUDA error {code}")


def _make_context() -> str:
    """The last call and its result."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as err:
        return f"no {LIBRARY}: {err.args[0]}"
    device, context = ctypes.c_int(), ctypes.c_void_p()
    calls: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuDevicePrimaryCtxRelease", (device,)),
    )
    text = ""
    for name, arguments in calls:
        code: int = getattr(cuda, name)(*arguments)
        text = f"{name} {code}"
        if code:
            break
    return text


if __name__ == "__main__":
    print(_make_context(), flush=True)
