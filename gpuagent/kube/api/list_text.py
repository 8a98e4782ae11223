"""A List object read item by item while it arrives: only one item is in memory at a time, however long the list is."""

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]

_ITEMS = '"items":['
_DECODER = json.JSONDecoder()


def read_list(pieces: Iterable[bytes]) -> tuple[Json, Iterator[Json]]:
    """ListMeta, and the items, which are decoded as they are taken. API servers write ListMeta before them.

    `pieces` are the body as it arrives, cut anywhere. A List of another order or spacing is decoded whole. Raises
    ValueError for a body that is not a List, also while items are taken, and any error of reading `pieces`.
    """
    body = _Body(pieces)
    at = body.find(_ITEMS)
    head = _head(body.text[:at]) if at >= 0 else None
    if head is None:
        return _decoded(body.whole())
    body.drop(at + len(_ITEMS))
    return _metadata(head), _items(body)


def _head(text: str) -> Json | None:
    """A List without its items from the text before them; None if it has another order."""
    try:
        head = json.loads(f"{text}{_ITEMS}]}}")
    except ValueError:
        return None
    # The items of another field may be called so, too.
    is_list = isinstance(head, dict) and head.get("items") == [] and "metadata" in head
    return head if is_list else None


def _decoded(text: str) -> tuple[Json, Iterator[Json]]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 (the text is wrong, not the type of an argument)
    items = value.get("items")
    return _metadata(value), iter(items if isinstance(items, list) else ())


class _Body:
    """The received part of the body that is not dropped yet. Reading continues at position `at` of `text`."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._ended = False
        self.text = ""
        self.at = 0

    def drop(self, end: int) -> None:
        self.text = self.text[end:]
        self.at = 0

    def find(self, text: str) -> int:
        """Where the text is; reads until it is there. -1 if it does not come."""
        while True:
            at = self.text.find(text)
            if at >= 0 or not self.more():
                return at

    def more(self) -> bool:
        """Read about as much again as is buffered, so that a long item is not parsed at every piece."""
        if self._ended:
            return False
        self.drop(self.at)
        parts = [self.text]
        wanted = len(self.text)
        while wanted >= 0:
            piece = next(self._pieces, None)
            self._ended = piece is None
            parts.append(self._decoder.decode(piece or b"", final=self._ended))
            if self._ended:
                break
            wanted -= len(parts[-1]) or 1
        self.text = "".join(parts)
        return True

    def whole(self) -> str:
        while self.more():
            pass
        return self.text

    def next_is(self, char: str) -> bool:
        """Whether `char` is next; if so, skip it."""
        while self.at >= len(self.text) and self.more():
            pass
        is_next = self.text.startswith(char, self.at)
        if is_next:
            self.at += len(char)
        return is_next

    def value(self) -> Any:  # noqa: ANN401 - JSON
        """Take the next JSON value; reads until it is complete."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except ValueError:
                if not self.more():
                    raise
            else:
                # A number at the end of the text may have more digits.
                if end < len(self.text) or not self.more():
                    self.at = end
                    return value


def _metadata(head: Json) -> Json:
    metadata = head.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _items(body: _Body) -> Iterator[Json]:
    if not body.next_is("]"):
        while True:
            yield body.value()
            if body.next_is(","):
                continue
            if not body.next_is("]"):
                raise ValueError(f"no comma and no end of the list before {body.text[body.at : body.at + 20]!r}")
            break
    body.drop(body.at)
    json.loads('{"items":[]' + body.whole())  # raises where the list is cut
