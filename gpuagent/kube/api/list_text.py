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
    while (at := body.text.find(_ITEMS)) < 0 and body.more():
        pass
    try:
        head = json.loads(body.text[:at] + _ITEMS + "]}") if at >= 0 else None
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("items") != [] or "metadata" not in head:
        found = json.loads(body.whole())
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return _metadata(found), iter(found["items"] if isinstance(found.get("items"), list) else ())
    body.drop(at + len(_ITEMS))
    return _metadata(head), _items(body)


class _Body:
    """The received part of the body that is not dropped yet. Reading continues at position `at` of `text`."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._ended = False
        self.text = ""
        self.at = 0

    def drop(self, end: int) -> None:
        self.text, self.at = self.text[end:], 0

    def more(self) -> bool:
        """Read about as much again as is buffered, so that a long item is not parsed at every piece."""
        if self._ended:
            return False
        self.drop(self.at)
        parts, wanted = [self.text], len(self.text)
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
        found = self.text.startswith(char, self.at)
        self.at += len(char) if found else 0
        return found

    def value(self) -> Any:  # noqa: ANN401 - JSON
        """Take the next JSON value; reads until it is complete."""
        while True:
            try:
                found, end = _DECODER.raw_decode(self.text, self.at)
            except ValueError:
                if not self.more():
                    raise
            else:
                # A number at the end of the text may have more digits.
                if end < len(self.text) or not self.more():
                    self.at = end
                    return found


def _metadata(found: Json) -> Json:
    metadata = found.get("metadata")
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
