"""The head of a call: as much of HTTP as kube-scheduler's client speaks, and a refusal of everything else."""

from dataclasses import dataclass
from http import HTTPStatus

HEAD_BYTES = 16 * 1024
"""Bytes of a head. kube-scheduler's has about 200."""
_END = b"\r\n\r\n"
_MOST_DIGITS = 12
_VERSIONS = {b"HTTP/1.0", b"HTTP/1.1"}


@dataclass(frozen=True, slots=True)
class CallHead:
    """What the head says.

    Attributes:
        method: such as ``POST``.
        path: without the query.
        body_bytes: length of the body that follows.
        keeps: whether the client wants to send another call on this connection.
    """

    method: str
    path: str
    body_bytes: int
    keeps: bool


class HeadError(ValueError):
    """The head is not one of a call; the text says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def head_bytes(received: bytes | bytearray) -> int:
    """Length of the head with its empty line; 0 if its end has not come. Raises HeadError."""
    end = received.find(_END, 0, HEAD_BYTES)
    if end >= 0:
        return end + len(_END)
    if len(received) >= HEAD_BYTES:
        raise HeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head has over {HEAD_BYTES} bytes")
    return 0


def call_head(head: bytes) -> CallHead:
    """Read a head. Raises HeadError."""
    first, *lines = head.removesuffix(_END).split(b"\r\n")
    words = first.split(b" ")
    is_request = len(words) == 3 and words[2] in _VERSIONS
    if not is_request:
        raise HeadError(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
    method, target, version = words
    headers = dict(map(_header, lines))
    if b"transfer-encoding" in headers:
        raise HeadError(HTTPStatus.LENGTH_REQUIRED, "send the call with Content-Length instead of Transfer-Encoding")
    path, _, _ = target.partition(b"?")
    length = headers.get(b"content-length", b"0")
    connection = headers.get(b"connection", b"").lower()
    return CallHead(
        method=method.decode("latin-1"),
        path=path.decode("latin-1"),
        body_bytes=_length(length),
        keeps=version == b"HTTP/1.1" and connection != b"close",
    )


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or name != name.strip() or not name:
        raise HeadError(HTTPStatus.BAD_REQUEST, "a line of the head is not NAME: VALUE")
    return name.lower(), value.strip()


def _length(text: bytes) -> int:
    if not text.isdigit() or len(text) > _MOST_DIGITS:
        raise HeadError(HTTPStatus.BAD_REQUEST, "Content-Length is not a number of bytes")
    return int(text)
