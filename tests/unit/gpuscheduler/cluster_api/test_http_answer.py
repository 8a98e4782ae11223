"""Answers of HTTP/1.1 in any pieces, against the standard library's reader."""

import http.client
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscheduler.cluster_api.http_answer import HEAD_BYTES, AnswerReader, BadAnswerError

BODIES = st.binary(max_size=300)
STATUSES = st.sampled_from([200, 201, 204, 304, 404, 409, 429, 500])
INTERIM = "HTTP/1.1 100 Continue\r\n\r\n"


@st.composite
def chunked(draw, body):
    """The body in chunks of any sizes, some with extensions, and a trailer on some."""
    text = b""
    while body:
        size = draw(st.integers(1, len(body)))
        extension = draw(st.sampled_from([b"", b";name=value"]))
        text += b"%x%b\r\n%b\r\n" % (size, extension, body[:size])
        body = body[size:]
    return text + b"0\r\n" + draw(st.sampled_from([b"", b"Checksum: 1\r\n"])) + b"\r\n"


@st.composite
def answers(draw):
    """The bytes of an answer, its body, and whether the end of the connection ends it."""
    status = draw(STATUSES)
    has_body = status not in (204, 304)
    body = draw(BODIES) if has_body else b""
    framing = draw(st.sampled_from(["length", "chunks", "close"])) if has_body else "length"
    head = draw(st.sampled_from(["", INTERIM, INTERIM * 2])).encode()
    head += f"HTTP/1.1 {status} Some Words\r\nCache-Control: private\r\n".encode()
    match framing:
        case "length":
            head += b"content-length: %d\r\n" % len(body)
            text = body
        case "chunks":
            head += b"Transfer-Encoding: chunked\r\n"
            text = draw(chunked(body))
        case _:
            text = body
    return head + b"\r\n" + text, body, framing == "close"


class Received(io.BytesIO):
    """What the standard library reads instead of a socket."""

    def makefile(self, _mode):
        return self


@given(answers(), st.data())
def test_an_answer_is_read_whole_from_any_pieces(answer, data):
    text, body, ends_with_connection = answer
    expected = http.client.HTTPResponse(Received(text))
    expected.begin()
    assert expected.read() == body
    reader = AnswerReader()
    whole = None
    remaining = text
    while remaining:
        assert whole is None, "the answer ended before its bytes"
        size = data.draw(st.integers(1, len(remaining)))
        whole = reader.feed(remaining[:size])
        remaining = remaining[size:]
    whole = reader.closed() if ends_with_connection else whole
    assert (whole.status, whole.reason, whole.body) == (expected.status, expected.reason, body)
    assert whole.keeps is not ends_with_connection


@given(answers(), st.data())
def test_an_answer_that_breaks_off_is_none(answer, data):
    text, _, ends_with_connection = answer
    if ends_with_connection:
        text = text.partition(b"Some Words")[0]
    reader = AnswerReader()
    part = text[: data.draw(st.integers(0, len(text) - 1))]
    assert reader.feed(part) is None
    assert reader.closed() is None


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_waited_for(data):
    reader = AnswerReader()
    try:
        assert reader.feed(b"HTTP/1.1 200 OK\r\n" + data) is None or b"\r\n\r\n" in data
    except BadAnswerError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * (HEAD_BYTES + 1),
        b"HTTP/1.1 200 OK\r\n" + b"a" * (HEAD_BYTES + 1),
    ],
)
def test_what_is_no_answer_is_refused(text):
    with pytest.raises(BadAnswerError):
        AnswerReader().feed(text)


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore", False),
    ],
)
def test_a_connection_with_more_on_it_carries_no_other_request(text, keeps):
    assert AnswerReader().feed(text).keeps is keeps


def test_the_time_of_the_next_try_is_read():
    answer = AnswerReader().feed(b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")
    assert (answer.status, answer.retry_after) == (429, "7")
