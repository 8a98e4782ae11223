"""One open watch: lines of JSON off a connection, as events."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self

from gpuagent.domain.pods.json_values import number
from gpuagent.kube.api.api_errors import ApiError, KubeError


class Body(Protocol):
    """The methods of an HTTP response that a watch uses (urllib3's response has them)."""

    def stream(self, amt: int | None = None, decode_content: bool | None = None) -> Iterator[bytes]:
        """Yield the body in the pieces in which it arrives."""

    def shutdown(self) -> None:
        """End reading, from any thread."""

    def close(self) -> None:
        """Close the connection."""


class Watch:
    """Iterator of events ``{"type": "ADDED"|"MODIFIED"|"DELETED"|"BOOKMARK", "object": {...}}``.

    Ends when the server ends the watch without an error or ``close`` is called. Raises ApiError for an ERROR event (410
    when the version is too old) and ApiUnreachable when the connection breaks or stays silent for too long.
    """

    def __init__(self, body: Body, translate: Callable[[Exception], KubeError]) -> None:
        self._body = body
        self._translate = translate
        self._closed = False
        self._events = events(self._pieces())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._body.close()

    def close(self) -> None:
        """End the iteration, from any thread, also while it waits for the server."""
        self._closed = True
        try:
            self._body.shutdown()
        except (OSError, ValueError, RuntimeError):
            return  # it has ended already

    def _pieces(self) -> Iterator[bytes]:
        try:
            yield from self._body.stream(decode_content=False)
        except Exception as err:
            # A closed TLS socket may raise nearly anything in the reader.
            if not self._closed:
                raise self._translate(err) from err


def events(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the events of a watch body; pieces may cut lines, and characters, anywhere.

    Raises ApiError for an ERROR event and for anything that is not an event.
    """
    rest = b""
    for piece in pieces:
        # Most pieces end with a line, and need not be copied.
        body = rest + piece if rest else piece
        *lines, rest = body.split(b"\n")
        for line in lines:
            if line.strip():
                yield _event(line)


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
        kind = event["type"]
        content = dict[str, Any](event["object"])
    except (ValueError, KeyError, TypeError) as err:
        raise ApiError(0, "BadAnswer", "the watch sent what is not an event; is this an API server?") from err
    if kind == "ERROR":
        code = number(content.get("code")) or 0
        reason = str(content.get("reason", ""))
        raise ApiError(code, reason, str(content.get("message", "")))
    return {"type": str(kind), "object": content}
