"""One connection of a caller. It takes one call at a time, within bounds of size and time, and writes the answer."""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol, cast

from gpuscheduler.extender.call_head import CallHead, HeadError, call_head, head_bytes
from gpuscheduler.extender.routes import Answer, Left, text_answer

log = logging.getLogger(__name__)

CALL_S = 5.0
"""How long a client may take to send a call: the whole of it."""
ANSWER_S = 10.0
"""How long a client may take to read an answer: the whole of it."""


class Answers(Protocol):
    """Answers calls, see `routes.Routes`."""

    def check(self, method: str, path: str, body_bytes: int) -> None:
        """Refuse a call by its head. Raises HeadError."""

    async def answer(self, path: str, body: bytes, left: Left) -> Answer:
        """Serve a call."""


class CallConnection(asyncio.Protocol):
    """One connection.

    Args:
        answers: serves the calls.
        changed: called when the connection begins or ceases to wait for its client, and when more of a call has come.

    Attributes:
        has_called: a whole call has come on it, as from kube-scheduler.
    """

    def __init__(self, answers: Answers, changed: Callable[["CallConnection"], None]) -> None:
        self._answers = answers
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._head: CallHead | None = None
        self._serving: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._stopping = False
        self._refused = False
        self._has_answered = False
        self.has_called = False

    @property
    def waits(self) -> bool:
        """Whether it waits for its client: for a call, or for the rest of one."""
        return self._serving is None and not self._gone.is_set()

    @property
    def received_bytes(self) -> int:
        """Of the call that is being read."""
        return len(self._received)

    @property
    def serving(self) -> asyncio.Task[None] | None:
        """The call in progress; None without one."""
        return self._serving

    def close(self) -> None:
        """Close it at once, whatever the client has sent."""
        self._transport.abort()

    def stop(self) -> None:
        """Close it after the call in progress."""
        self._stopping = True
        if self._serving is None:
            self._transport.close()

    # -- what the event loop calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its type
        self._changed(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """Learn that the client has gone."""
        self._gone.set()
        self._set_deadline(None)
        self._received.clear()
        self._changed(self)

    def pause_writing(self) -> None:
        """Read no further call until the client has read its answer, and wait for that only so long."""
        self._transport.pause_reading()
        self._set_deadline(ANSWER_S)

    def resume_writing(self) -> None:
        """Go on: the client has read its answer."""
        self._set_deadline(None)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Read on; serve the call when all of it is there."""
        if self._refused:
            return
        if self._serving is not None:
            # kube-scheduler sends a call after the answer to the last one. Others could queue up calls without end.
            self.close()
            return
        self._received += data
        try:
            body = self._read()
        except HeadError as err:
            self._refuse(err)
            return
        if body is not None:
            self._set_deadline(None)
            self._serving = self._loop.create_task(self._serve(body))
        elif self._deadline is None:
            # Most calls come in one piece, and need no deadline.
            self._set_deadline(CALL_S)
        self._changed(self)

    # -- one call --------------------------------------------------------------------------------------------------

    def _read(self) -> bytes | None:
        """The body; None if the call has not come whole. Raises HeadError."""
        if self._head is None:
            end = head_bytes(self._received)
            if not end:
                return None
            head = call_head(bytes(self._received[:end]))
            self._answers.check(head.method, head.path, head.body_bytes)
            del self._received[:end]
            self._head = head
        if len(self._received) < self._head.body_bytes:
            return None
        if len(self._received) > self._head.body_bytes:
            raise HeadError(HTTPStatus.BAD_REQUEST, "the body is longer than its Content-Length")
        body = bytes(self._received)
        self._received.clear()
        return body

    def _refuse(self, err: HeadError) -> None:
        """Answer a call that is not served, and close."""
        self._write(text_answer(err.status, str(err)), keeps=False)
        if err.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            # A connection that is closed while its client sends is reset, and the client may never see the answer. So
            # the rest is read and dropped, until the client has gone or its time for the call is over.
            self._refused = True
            self._received.clear()
            self._set_deadline(CALL_S)
        else:
            self._transport.close()

    async def _serve(self, body: bytes) -> None:
        head = self._head
        assert head is not None
        self._head = None
        self.has_called = True
        answer = await self._answers.answer(head.path, body, self._left)
        self._serving = None
        if not self._gone.is_set():
            keeps = head.keeps and not self._stopping
            self._write(answer, keeps=keeps)
            if not keeps:
                self._transport.close()
        self._changed(self)

    async def _left(self) -> None:
        await self._gone.wait()

    def _write(self, answer: Answer, *, keeps: bool) -> None:
        status, content_type, body = answer
        head = f"{_head(status, content_type, keeps=keeps)}Content-Length: {len(body)}\r\n\r\n"
        if not self._has_answered:
            self._has_answered = True
            # So `pause_writing` says that the client has not read all of the answer. Not before the first answer: TLS
            # may still have to write the end of its handshake, and with 0 it always pauses.
            self._transport.set_write_buffer_limits(high=1, low=0)
        self._transport.write(head.encode() + body)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self._loop.call_later(seconds, self.close)


@lru_cache(maxsize=32)
def _head(status: HTTPStatus, content_type: str, *, keeps: bool) -> str:
    """The head of an answer without its length. Nearly all answers have the same."""
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Connection: {'keep-alive' if keeps else 'close'}",
    )
    return "".join([f"{line}\r\n" for line in lines])
