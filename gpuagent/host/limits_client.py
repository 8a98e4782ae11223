"""Client of `gpuagent memory-limits`, the privileged process that sets the NVIDIA driver's memory limits of cgroups.

One JSON object a line in both directions, over a unix socket; answers come in the order of the requests::

    {"op": "set", "gpu": "GPU-...", "pod": "<UID>", "leaf": "", "bytes": 8589934592}
    {"ok": true, "hard": 8589934592, "used": 0}
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from gpuagent.system.printable import error_words, printable

T = TypeVar("T")

SOCKET = Path("/run/gpuagent-limits/limits.sock")
NO_LIMIT = (1 << 64) - 1
"""As the bytes of a limit: all memory of the GPU."""
BLOCK = 2 << 20
"""Bytes of the blocks in which the driver hands out memory."""
DEADLINE_S = 5.0
PIPELINED = 64
"""Requests sent before their answers are read. Both fit into a socket's buffers, so neither side blocks the other."""
_IDLE_CONNECTIONS = 4
MOST_ANSWER = 1 << 20
_TIMEVAL = struct.Struct("@ll")
_ADVICE = "look at the log of the agent's container memory-limits"


class LimitsError(Exception):
    """The helper did not do what was asked; the text says why and what to do."""


class HelperGoneError(LimitsError):
    """No helper answers, or not in time."""


class NoTargetError(LimitsError):
    """The helper knows no such GPU, pod or container: for example, the pod has ended."""


class RefusedError(LimitsError):
    """The helper does not do this at all, or not for this user."""


class BelowUseError(LimitsError):
    """The limit is lower than what is in use; the former limit holds.

    Attributes:
        used: bytes in use; None if the helper does not say it.
    """

    def __init__(self, message: str, used: int | None = None) -> None:
        super().__init__(message)
        self.used = used


class LimitDriverError(LimitsError):
    """The driver did not set or report the limit."""


class BadRequestError(LimitsError):
    """The helper does not understand the request: it is of another version."""


ERROR_KINDS: dict[type[LimitsError], str] = {
    NoTargetError: "NotFound",
    RefusedError: "Refused",
    BelowUseError: "BelowUse",
    LimitDriverError: "DriverError",
    BadRequestError: "BadRequest",
}
"""Errors by their names in the protocol."""
_ERRORS = {name: error for error, name in ERROR_KINDS.items()}


@dataclass(frozen=True, slots=True)
class Target:
    """What a limit is about.

    Attributes:
        gpu: its UUID.
        pod: UID of the pod, as in the name of its cgroup.
        leaf: name of a container's cgroup in the pod's; empty for the pod's own.
    """

    gpu: str
    pod: str
    leaf: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit in force, in bytes.

    Attributes:
        hard: None if there is none.
        used: what counts against it.
    """

    hard: int | None
    used: int

    def is_of(self, size: int) -> bool:
        """Whether this is the limit that was set to `size` bytes: the driver may round it by less than `BLOCK`."""
        if self.hard is None or size == NO_LIMIT:
            return self.hard is None and size == NO_LIMIT
        return abs(self.hard - size) < BLOCK


@dataclass(frozen=True, slots=True)
class Description:
    """What the helper can do.

    Attributes:
        driver: version of the NVIDIA driver; empty if it is not known.
        pods_root: the cgroup of all pods; None if it was not found.
        backend: ``dmem`` or ``misc``: who accounts for the memory; empty if it is not known.
        gpus: UUID of each GPU to why its memory cannot be limited; None if it can.
        problem: why no GPU's memory can be limited, and what to do; None if that works.
    """

    driver: str
    pods_root: Path | None
    backend: str
    gpus: Mapping[str, str | None]
    problem: str | None


class LimitsClient:
    """Asks the helper. Every method may be called from any thread, and raises LimitsError.

    Args:
        path: of the helper's socket.
        deadline_s: for each answer, and for a new connection.

    Attributes:
        connections_lost: how often a connection had ended when it was to be used again. Another process of the helper
            may answer since, and the driver may have dropped limits meanwhile.
    """

    def __init__(self, path: Path = SOCKET, *, deadline_s: float = DEADLINE_S) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self.connections_lost = 0

    def describe(self) -> Description:
        """What the helper can do on this node."""
        answer = self._ask({"op": "describe"})
        return _parsed(_description, answer)

    def set(self, target: Target, size: int) -> Limit:
        """Set a limit and return what the driver then reports. `NO_LIMIT` is for containers' cgroups only.

        Raises:
            BelowUseError: more is in use.
            NoTargetError: there is no such pod, container or GPU.
            LimitsError: any other reason.
        """
        answer = self._ask({"op": "set", **_fields(target), "bytes": size})
        return _parsed(_limit, answer)

    def get(self, target: Target) -> Limit:
        """The limit in force. Raises LimitsError, NoTargetError as for `set`."""
        return _parsed(_limit, self._ask({"op": "get", **_fields(target)}))

    def get_many(self, targets: Iterable[Target]) -> dict[Target, Limit | LimitsError]:
        """The limits in force of many cgroups, each with its own error.

        Raises HelperGoneError.
        """
        results: dict[Target, Limit | LimitsError] = {}
        remaining = iter(dict.fromkeys(targets))
        while batch := list(islice(remaining, PIPELINED)):
            requests = [{"op": "get", **_fields(target)} for target in batch]
            answers = self._exchange(requests)
            for target, answer in zip(batch, answers, strict=True):
                results[target] = _limit_or_error(answer)
        return results

    def close(self) -> None:
        """Close the connections; a later call opens a new one."""
        with self._lock:
            idle = self._idle
            self._idle = []
        for connection in idle:
            connection.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        (answer,) = self._exchange([request])
        error = _error_in(answer)
        if error:
            raise error
        return answer

    def _exchange(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answers, each an object."""
        until = time.monotonic() + self._deadline_s
        while True:
            with self._connection(until) as connection:
                try:
                    return connection.exchange(requests, self._deadline_s)
                except TimeoutError as err:
                    raise self._hangs() from err
                except OSError as err:
                    # An old connection does not show that the helper was restarted. Every request may be repeated.
                    if connection.is_fresh:
                        raise self._gone(err) from err
                    with self._lock:
                        self.connections_lost += 1
                except ValueError as err:
                    raise LimitsError(f"the program at {self._path} is no helper of this version: {err}") from err

    @contextmanager
    def _connection(self, until: float) -> Iterator["_Connection"]:
        """A connection for this call alone. It is kept for later calls if this one ends well."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connect(until)
        try:
            yield connection
        finally:
            self._keep_or_close(connection)

    def _keep_or_close(self, connection: "_Connection") -> None:
        with self._lock:
            is_kept = connection.is_usable and len(self._idle) < _IDLE_CONNECTIONS
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()

    def _connect(self, until: float) -> "_Connection":
        try:
            return _Connection(self._path, until)
        except TimeoutError as err:
            raise self._hangs() from err
        except OSError as err:
            raise self._gone(err) from err

    def _hangs(self) -> HelperGoneError:
        waited = f"no answer for {self._deadline_s:g} s"
        return HelperGoneError(f"the helper at {self._path} hangs: {waited}; {_ADVICE}")

    def _gone(self, err: OSError) -> HelperGoneError:
        words = err.strerror or error_words(err) or type(err).__name__
        return HelperGoneError(f"no helper for memory limits answers at {self._path} ({words}); {_ADVICE}")


class _Connection:
    """One connection, for one call at a time. Raises OSError if the helper cannot be reached.

    Attributes:
        is_fresh: no call has used it yet.
        is_usable: the next call may use it.
    """

    def __init__(self, path: Path, until: float) -> None:
        self.is_fresh = True
        self.is_usable = True
        self._received = b""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            _connect(self._socket, path, _left_s(until))
        except OSError:
            self._socket.close()
            raise

    def exchange(self, requests: Sequence[dict[str, Any]], deadline_s: float) -> list[dict[str, Any]]:
        """Send all and read as many answers, each within the deadline after the one before.

        Raises OSError, or ValueError for an answer that is no JSON object.
        """
        # Until the last answer is read, the next call would read an answer to this one.
        self.is_usable = False
        lines = [json.dumps(request).encode() + b"\n" for request in requests]
        self._socket.settimeout(deadline_s)
        self._socket.sendall(b"".join(lines))
        answers = []
        for _ in requests:
            line = self._read_line(time.monotonic() + deadline_s)
            answers.append(_object(line))
        self.is_usable = not self._received
        self.is_fresh = False
        return answers

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _read_line(self, until: float) -> bytes:
        while b"\n" not in self._received:
            if len(self._received) > MOST_ANSWER:
                raise ValueError(f"it answers with more than {MOST_ANSWER} bytes on a line")
            self._socket.settimeout(_left_s(until))
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError(None, "it closed the connection")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line


def _connect(connection: socket.socket, path: Path, timeout_s: float) -> None:
    """Connect; wait if the helper's queue of new connections is full. Raises OSError."""
    # With a timeout of Python's own, a full queue would be an error at once.
    whole_s = int(timeout_s)
    microseconds = int((timeout_s - whole_s) * 1e6) + 1
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(whole_s, microseconds))
    try:
        connection.connect(str(path))
    except BlockingIOError as err:
        raise TimeoutError from err


def _left_s(until: float) -> float:
    """Seconds until then. Raises TimeoutError if they are over: a socket's timeout of 0 would mean not to wait."""
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _fields(target: Target) -> dict[str, str]:
    return {"gpu": target.gpu, "pod": target.pod, "leaf": target.leaf}


def _object(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ValueError("its answer is not a JSON object")  # noqa: TRY004 (of what was received)
    return answer


def _error_in(answer: dict[str, Any]) -> LimitsError | None:
    """The error that an answer reports; None if it reports success."""
    if answer.get("ok") is True:
        return None
    message = printable(str(answer.get("message", "the helper does not say why")))
    error = _ERRORS.get(str(answer.get("error")), LimitsError)
    if error is BelowUseError:
        used = answer.get("used")
        return BelowUseError(message, used if isinstance(used, int) else None)
    return error(message)


def _limit_or_error(answer: dict[str, Any]) -> Limit | LimitsError:
    error = _error_in(answer)
    if error:
        return error
    try:
        return _parsed(_limit, answer)
    except LimitsError as err:
        return err


def _parsed(parse: Callable[[dict[str, Any]], T], answer: dict[str, Any]) -> T:
    try:
        return parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise LimitsError(f"the helper is of another version: its answer lacks a value ({err})") from err


def _limit(answer: dict[str, Any]) -> Limit:
    hard = answer["hard"]
    return Limit(None if hard is None else _bytes(hard), _bytes(answer["used"]))


def _bytes(value: object) -> int:
    """A number of bytes. Raises ValueError: it is something else, such as true or Infinity."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of bytes")
    return value


def _description(answer: dict[str, Any]) -> Description:
    root = answer["pods_root"]
    problem = answer["problem"]
    gpus = {}
    for uuid, why in answer["gpus"].items():
        gpus[str(uuid)] = None if why is None else printable(str(why))
    return Description(
        driver=str(answer["driver"] or ""),
        pods_root=Path(root) if root else None,
        backend=str(answer["backend"] or ""),
        gpus=gpus,
        problem=None if problem is None else printable(str(problem)),
    )
