"""The two patch formats that the stand-in API server takes, as pure functions on decoded JSON."""

from typing import Any

Json = dict[str, Any]

# Lists of core/v1 that strategic merge joins by a key of their entries; other lists are replaced.
_MERGE_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "ownerReferences": "uid",
    "schedulingGates": "name",
}


def merge(before: Any, patch: Any, *, strategic: bool) -> Any:  # noqa: ANN401 - any JSON
    """Return ``before`` with ``patch`` merged in: RFC 7396, or strategic merge with its ``$patch: delete``."""
    if not isinstance(patch, dict):
        return patch
    merged: Json = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if strategic and key.startswith("$"):
            continue  # $setElementOrder, $retainKeys: order only
        if value is None:
            merged.pop(key, None)
        elif strategic and isinstance(value, list) and key in _MERGE_KEYS:
            merged[key] = _merge_list(merged.get(key) or [], value, _MERGE_KEYS[key])
        else:
            merged[key] = merge(merged.get(key), value, strategic=strategic)
    return merged


def _merge_list(before: list[Json], patch: list[Json], key: str) -> list[Json]:
    entries = {entry[key]: entry for entry in before}
    for change in patch:
        if change.get("$patch") == "delete":
            entries.pop(change[key], None)
        else:
            entries[change[key]] = merge(entries.get(change[key]), change, strategic=True)
    return list(entries.values())
