"""The head of a call: as much of HTTP as kube-scheduler's client speaks, and a refusal of everything else."""

from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

import httptools

HEAD_BYTES = 16 * 1024
"""Bytes of a head. kube-scheduler's has about 200."""
_END = b"\r\n\r\n"
_VERSIONS = ("1.0", "1.1")


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


@lru_cache(maxsize=128)
def call_head(head: bytes) -> CallHead:
    """Read a head. Raises HeadError.

    The heads of one kube-scheduler differ in nothing but their Content-Length, so those that were read are kept.
    """
    said = _Said()
    parser = httptools.HttpRequestParser(said)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade as err:
        raise HeadError(
            HTTPStatus.BAD_REQUEST, "only HTTP/1.1 is spoken here: send the call without an upgrade"
        ) from err
    except httptools.HttpParserError as err:
        raise HeadError(HTTPStatus.BAD_REQUEST, f"not the head of an HTTP/1.1 request: {err}") from err
    # An empty line before the request ends here, for example.
    is_request = said.is_whole and parser.get_http_version() in _VERSIONS
    if not is_request:
        raise HeadError(HTTPStatus.BAD_REQUEST, "not the head of an HTTP/1.1 request")
    if b"transfer-encoding" in said.headers:
        raise HeadError(HTTPStatus.LENGTH_REQUIRED, "send the call with Content-Length instead of Transfer-Encoding")
    path, _, _ = said.target.partition(b"?")
    length = said.headers.get(b"content-length", b"0")
    return CallHead(
        method=parser.get_method().decode("latin-1"),
        path=path.decode("latin-1"),
        # The parser has refused what is not a number.
        body_bytes=int(length),
        keeps=parser.should_keep_alive(),
    )


class _Said:
    """What the parser finds."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.is_whole = False

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.is_whole = True
