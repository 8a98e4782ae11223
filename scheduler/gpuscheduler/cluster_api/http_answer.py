"""One answer of HTTP/1.1, read from the pieces in which it comes."""

import re
from dataclasses import dataclass
from enum import Enum, auto

HEAD_BYTES = 64 * 1024
"""The most bytes of a head, and of a line between chunks. The API server's heads have about 500."""
_END_OF_HEAD = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([^\r\n]*))?")
_DECIMAL = re.compile(rb"[0-9]{1,12}")
_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{1,8}")
_INTERIM = range(100, 200)
_NO_BODY = (204, 304)


class BadAnswerError(ValueError):
    """The bytes are no answer of HTTP/1.1."""


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


class _Body(Enum):
    """How the end of a body is told."""

    BY_LENGTH = auto()
    BY_CHUNKS = auto()
    BY_CLOSE = auto()


class AnswerReader:
    """Reads one answer. Interim answers before it are left out."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._status = 0
        self._reason = ""
        self._retry_after: str | None = None
        self._keeps = False
        self._body_end = _Body.BY_LENGTH
        self._remaining = 0
        self._chunks = bytearray()

    def feed(self, data: bytes) -> HttpAnswer | None:
        """The answer; None if more of it has to come. Raises BadAnswerError."""
        self._received += data
        while not self._status:
            if not self._read_head():
                return None
        if self._body_end is _Body.BY_LENGTH:
            is_whole = len(self._received) >= self._remaining
            return self._whole(self._received, self._remaining) if is_whole else None
        if self._body_end is _Body.BY_CHUNKS and self._read_chunks():
            return self._whole(self._chunks, len(self._chunks))
        return None

    def closed(self) -> HttpAnswer | None:
        """The answer that ends where the server has closed the connection; None if the end is missing."""
        is_whole = bool(self._status) and self._body_end is _Body.BY_CLOSE
        return self._whole(self._received, len(self._received)) if is_whole else None

    def _whole(self, body: bytearray, length: int) -> HttpAnswer:
        # What follows an answer is the answer to nothing.
        is_all = len(self._received) <= self._remaining
        return HttpAnswer(
            status=self._status,
            reason=self._reason,
            retry_after=self._retry_after,
            body=bytes(body[:length]),
            keeps=self._keeps and is_all,
        )

    def _read_head(self) -> bool:
        """Read a head; whether it has come whole."""
        end = self._received.find(_END_OF_HEAD)
        if max(end, len(self._received) if end < 0 else 0) > HEAD_BYTES:
            raise BadAnswerError(f"a head of over {HEAD_BYTES} bytes")
        if end < 0:
            return False
        first, *lines = bytes(self._received[:end]).split(b"\r\n")
        del self._received[: end + len(_END_OF_HEAD)]
        match = _STATUS.fullmatch(first)
        if match is None:
            raise BadAnswerError("not an answer of HTTP/1.1")
        minor, status, reason = match.groups()
        if int(status) in _INTERIM:
            return True
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        self._status = int(status)
        self._reason = (reason or b"").decode("latin-1")
        retry_after = headers.get(b"retry-after")
        self._retry_after = None if retry_after is None else retry_after.decode("latin-1")
        self._keeps = minor == b"1" and headers.get(b"connection", b"").lower() != b"close"
        self._learn_end(headers)
        return True

    def _learn_end(self, headers: dict[bytes, bytes]) -> None:
        """Learn where the body ends."""
        coding = headers.get(b"transfer-encoding")
        length = headers.get(b"content-length")
        if self._status in _NO_BODY:
            return
        if coding is not None:
            if coding.lower() != b"chunked":
                raise BadAnswerError("a Transfer-Encoding that was not asked for")
            self._body_end = _Body.BY_CHUNKS
        elif length is not None:
            if not _DECIMAL.fullmatch(length):
                raise BadAnswerError("a Content-Length that is not a number")
            self._remaining = int(length)
        else:
            self._body_end = _Body.BY_CLOSE
            self._keeps = False

    def _read_chunks(self) -> bool:
        """Take the chunks that have come whole; whether the last one has."""
        while True:
            end = self._received.find(b"\r\n")
            if end < 0:
                if len(self._received) > HEAD_BYTES:
                    raise BadAnswerError("a chunk without a size")
                return False
            # An extension may follow the size.
            size_text, _, _ = bytes(self._received[:end]).partition(b";")
            if not _HEXADECIMAL.fullmatch(size_text.strip()):
                raise BadAnswerError("a chunk without a size")
            size = int(size_text, 16)
            if not size:
                return self._read_trailer(end)
            begin = end + 2
            following = begin + size + 2
            if len(self._received) < following:
                return False
            self._chunks += self._received[begin : begin + size]
            del self._received[:following]

    def _read_trailer(self, end: int) -> bool:
        """Take what follows the last chunk, whose line ends here; whether it has come whole."""
        # Without a trailer, the empty line follows at once.
        trailer_end = self._received.find(_END_OF_HEAD, end)
        if trailer_end < 0:
            return False
        del self._received[: trailer_end + len(_END_OF_HEAD)]
        return True
