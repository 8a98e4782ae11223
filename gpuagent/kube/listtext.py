"""A List object read item by item: each is gone before the next is made, which halves time and memory."""

import json
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_ITEMS = '"items":['
_DECODER = json.JSONDecoder()


def read_list(data: bytes) -> tuple[Json, Iterator[Json]]:
    """ListMeta, and the items, which are decoded as they are taken. API servers write ListMeta before them.

    A List of another order or spacing is decoded whole. Raises ValueError for what is no List, also while items are
    taken.
    """
    text = data.decode()
    at = text.find(_ITEMS)
    try:
        head = json.loads(text[:at] + _ITEMS + "]}") if at >= 0 else None
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("items") != [] or "metadata" not in head:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return _metadata(found), iter(found["items"] if isinstance(found.get("items"), list) else ())
    return _metadata(head), _items(text, at + len(_ITEMS))


def _metadata(found: Json) -> Json:
    metadata = found.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _items(text: str, at: int) -> Iterator[Json]:
    if text.startswith("]", at):
        after = at + 1
    else:
        while True:
            item, at = _DECODER.raw_decode(text, at)
            yield item
            if text.startswith(",", at):
                at += 1
                continue
            if not text.startswith("]", at):
                raise ValueError(f"no comma and no end of the list at {at}")
            after = at + 1
            break
    json.loads('{"items":[]' + text[after:])  # raises where the list is cut
