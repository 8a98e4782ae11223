"""One answer of HTTP/1.1, read from the pieces in which it comes."""

from dataclasses import dataclass, field, replace

import httptools

HEAD_BYTES = 64 * 1024
"""The most bytes of a head, and of a line between chunks. The API server's heads have about 500."""
_FIRST_FINAL = 200
"""Answers with a lower status, such as 100 Continue, come before the answer."""


class BadAnswerError(ValueError):
    """The bytes cannot be read as an answer of HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer.

    Attributes:
        status: such as 201.
        reason: the words beside the status.
        retry_after: the header; None without one.
        body: of the answer.
        keeps: whether the connection may carry another request.
    """

    status: int
    reason: str
    retry_after: str | None
    body: bytes
    keeps: bool = False


@dataclass(slots=True)
class _Message:
    """What has come of an answer, or of an interim one.

    Attributes:
        reason: the words beside the status.
        retry_after: the header; None without one.
        body: of the answer.
        has_head: the head has come whole.
        tells_end: the head says where the body ends.
    """

    reason: bytes = b""
    retry_after: str | None = None
    body: bytearray = field(default_factory=bytearray)
    has_head: bool = False
    tells_end: bool = False


class AnswerReader:
    """Reads one answer. Interim answers before it are left out."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._message = _Message()
        self._answer: HttpAnswer | None = None
        self._bytes_since_body = 0

    def feed(self, data: bytes) -> HttpAnswer | None:
        """The answer; None if more of it has to come. Raises BadAnswerError."""
        self._bytes_since_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as err:
            # What follows an answer may be anything: the connection carries no other request.
            if self._answer is None:
                raise BadAnswerError(f"not an answer of HTTP/1.1: {err}") from err
        if self._answer is None and self._bytes_since_body > HEAD_BYTES:
            raise BadAnswerError(f"over {HEAD_BYTES} bytes without a part of the body")
        return self._answer

    def closed(self) -> HttpAnswer | None:
        """The answer that ends where the server has closed the connection; None if the end is missing."""
        ends_here = self._message.has_head and not self._message.tells_end
        return self._whole(keeps=False) if ends_here else None

    # -- what the parser calls -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Learn that something follows an answer, which is the answer to nothing."""
        if self._answer is not None:
            self._answer = replace(self._answer, keeps=False)

    def on_status(self, reason: bytes) -> None:
        """Take the words beside the status."""
        self._message.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, also one that follows the body."""
        if self._message.has_head:
            return
        match name.lower():
            case b"retry-after":
                self._message.retry_after = value.decode("latin-1")
            case b"content-length":
                self._message.tells_end = True
            case b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise BadAnswerError("a Transfer-Encoding that was not asked for")
                self._message.tells_end = True

    def on_headers_complete(self) -> None:
        """Learn that the body follows."""
        self._message.has_head = True

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._message.body += part
        self._bytes_since_body = 0

    def on_message_complete(self) -> None:
        """Have the whole answer, unless it was an interim one."""
        if self._parser.get_status_code() < _FIRST_FINAL:
            self._message = _Message()
        elif self._answer is None:
            self._answer = self._whole(keeps=self._parser.should_keep_alive())

    def _whole(self, *, keeps: bool) -> HttpAnswer:
        return HttpAnswer(
            status=self._parser.get_status_code(),
            reason=self._message.reason.decode("latin-1"),
            retry_after=self._message.retry_after,
            body=bytes(self._message.body),
            keeps=keeps,
        )
