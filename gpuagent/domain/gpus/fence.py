"""GPUs that the operator has fenced, read from the fence file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.gpus.gpu import Gpu

EXAMPLE = '{"index": ["0"], "uuid": ["GPU-…"]}'

_LISTS = ("index", "uuid")


@dataclass(frozen=True, slots=True)
class Fence:
    """The content of a valid fence file.

    Attributes:
        indexes: minor numbers (N of ``/dev/nvidiaN``) as text, without leading zeros; also texts that are no number.
        uuids: as NVML spells them.
        ignored: keys of the file without a meaning.
    """

    indexes: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()

    def entry_of(self, gpu: Gpu) -> str | None:
        """The entry that names `gpu`, in words; None where none does."""
        if str(gpu.minor) in self.indexes:
            return f"index {gpu.minor}"
        if gpu.uuid in self.uuids:
            return "its UUID"
        return None

    def unknown(self, gpus: Iterable[Gpu]) -> tuple[str, ...]:
        """Entries that name none of `gpus`, in words."""
        minors: set[str] = set()
        uuids: set[str] = set()
        for gpu in gpus:
            minors.add(str(gpu.minor))
            uuids.add(gpu.uuid)
        unknown_entries = {
            "index": self.indexes - minors,
            "uuid": self.uuids - uuids,
            "key": self.ignored,
        }
        words: list[str] = []
        for kind, texts in unknown_entries.items():
            in_order = sorted(texts)
            # !r: the file may hold text that is not printable.
            words += [f"{kind} {text!r:.60}" for text in in_order]
        return tuple(words)


def parse_fence(text: str) -> Fence:
    """Read a fence file. Raises ValueError with a readable message for invalid text."""
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as err:
        place = f"line {err.lineno}, column {err.colno}"
        raise ValueError(f"it is not JSON: {err.msg} in {place}") from None
    except _Twice as err:
        raise ValueError(f"it has the key {err.key!r:.60} twice, or in two spellings") from None
    except (RecursionError, ValueError):
        raise ValueError("it is no fence: it is nested too deep, or has a number of too many digits") from None
    if not isinstance(content, dict):
        raise ValueError(f"it is {_kind(content)} and not an object")  # noqa: TRY004 (one error for whatever is wrong)
    # Go programs read `Index` as `index`, so accept both.
    spelled = {key.lower(): key for key in content if key.lower() in _LISTS}
    entries: dict[str, list[str]] = {}
    for name in _LISTS:
        key = spelled.get(name, name)
        entries[name] = _entries(name, content.get(key))
    return Fence(
        indexes=frozenset(map(_plain, entries["index"])),
        uuids=frozenset(entries["uuid"]),
        ignored=frozenset(content.keys() - set(spelled.values())),
    )


class _Twice(Exception):  # noqa: N818 (never leaves this module)
    """An object has one key twice, so it is unclear which value counts."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: set[str] = set()
    for key, _ in pairs:
        lower = key.lower()
        name = lower if lower in _LISTS else key
        if name in seen:
            raise _Twice(key)
        seen.add(name)
    return dict(pairs)


def _entries(key: str, value: Any) -> list[str]:  # noqa: ANN401 (whatever JSON can hold)
    """A list's texts; null, as Go writes an empty list, is one without any."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f'"{key}" is {_kind(value)} and not a list')  # noqa: TRY004 (as above)
    return [_entry(key, entry) for entry in value]


def _entry(key: str, entry: Any) -> str:  # noqa: ANN401 (as above)
    if not isinstance(entry, str):
        is_number = isinstance(entry, int) and not isinstance(entry, bool)
        # Minor numbers may be written without quotes. UUIDs are text in any case.
        is_index = is_number and key == "index"
        if not is_index:
            kind = _kind(entry)
            raise ValueError(f'"{key}" has {kind} among its entries; each is a text in quotes')
    return str(entry).strip()


def _plain(index: str) -> str:
    """A number in its one spelling; any other text as it is."""
    is_number = index.isascii() and index.isdecimal()
    if not is_number:
        return index
    return index.lstrip("0") or "0"


def _kind(value: Any) -> str:  # noqa: ANN401 (as above)
    kinds = {
        bool: "true or false",
        dict: "an object",
        list: "a list",
        str: "a text",
        type(None): "null",
    }
    return kinds.get(type(value), "a number")
