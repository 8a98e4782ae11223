"""What the agent keeps true of a ConfigMap, and the smallest change that makes it so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Json = Mapping[str, Any]


MANAGED_BY = "app.kubernetes.io/managed-by"
TAKEN_OVER = "gpuagent-taken-over"
"""Label of a ConfigMap that somebody else made and that the agent's keys were put into: it is never deleted."""


@dataclass(frozen=True, slots=True)
class ConfigMapFacts:
    """What shall be true of one ConfigMap; everything else in it belongs to others.

    Attributes:
        namespace: where it is; the API server makes no namespace for it.
        name: a DNS subdomain, at most 253 characters.
        labels: value by label key, at most 63 characters each. They are also the mark by which it is known for ours:
            one that lacks any of them is never deleted.
        data: text by key; None for a key that shall not be there. None for the whole: nothing of ours shall be there,
            nor the object if nothing else is in it.
        keys: every key of the data that is ours to write and to remove.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    data: Mapping[str, str | None] | None
    keys: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """One request: ``create`` with the object, ``patch`` with a merge patch, ``delete`` with DeleteOptions.

    A patch and a deletion name the version that was looked at, so that the server refuses them (409) once somebody
    else has changed the object.
    """

    verb: Literal["create", "patch", "delete"]
    body: dict[str, Any]


def change(found: Json | None, facts: ConfigMapFacts) -> Change | None:
    """Return what makes ``found`` (decoded JSON as observed, None: there is none) agree with ``facts``.

    None where it does already, or where what should go is not ours or is on its way out.
    """
    if facts.data is None:
        if found is None or not _is_ours(found, facts) or _is_going(found):
            return None
        return _withdrawal(found, facts) if _is_shared(found, facts) else _deletion(found)
    if found is None:
        return _creation(facts, facts.data)
    return _patch(found, facts, facts.data)


def _creation(facts: ConfigMapFacts, data: Mapping[str, str | None]) -> Change:
    metadata = {"namespace": facts.namespace, "name": facts.name, "labels": dict(facts.labels)}
    present = {key: text for key, text in data.items() if text is not None}
    return Change("create", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": present})


def _patch(found: Json, facts: ConfigMapFacts, data: Mapping[str, str | None]) -> Change | None:
    labels = _difference(_labels(found), facts.labels)
    if TAKEN_OVER not in _labels(found) and _is_foreign(found, facts):
        labels = {**labels, TAKEN_OVER: "true"}
    if TAKEN_OVER in labels or TAKEN_OVER in _labels(found):
        labels = {key: value for key, value in labels.items() if key != MANAGED_BY}
    texts = _difference(found.get("data") or {}, data)
    if not labels and not texts:
        return None
    metadata: dict[str, Any] = {"resourceVersion": found["metadata"]["resourceVersion"]}
    if labels:
        metadata["labels"] = labels
    return Change("patch", {"metadata": metadata, "data": texts} if texts else {"metadata": metadata})


def _withdrawal(found: Json, facts: ConfigMapFacts) -> Change:
    """Take out what is ours and leave the rest to those whose it is."""
    labels = [key for key, value in _labels(found).items() if key == TAKEN_OVER or facts.labels.get(key) == value]
    metadata = {"resourceVersion": found["metadata"]["resourceVersion"], "labels": dict.fromkeys(labels)}
    ours = [key for key in found.get("data") or {} if key in facts.keys]
    return Change("patch", {"metadata": metadata, "data": dict.fromkeys(ours)} if ours else {"metadata": metadata})


def _deletion(found: Json) -> Change:
    seen = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
    return Change("delete", {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": seen})


def _difference(present: Json, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def _is_ours(found: Json, facts: ConfigMapFacts) -> bool:
    return TAKEN_OVER in _labels(found) or (bool(facts.labels) and facts.labels.items() <= _labels(found).items())


def _is_foreign(found: Json, facts: ConfigMapFacts) -> bool:
    """Whether somebody else made it. One that has lost some of its labels is still ours."""
    there = _labels(found)
    managed = there.get(MANAGED_BY, facts.labels.get(MANAGED_BY)) != facts.labels.get(MANAGED_BY)
    return bool(facts.labels) and (managed or not facts.labels.items() & there.items())


def _is_shared(found: Json, facts: ConfigMapFacts) -> bool:
    """Whether there is anything of others in it."""
    others = (found.get("data") or {}).keys() - facts.keys
    return bool(TAKEN_OVER in _labels(found) or others or found.get("binaryData"))


def _is_going(found: Json) -> bool:
    """Whether only finalizers keep it."""
    return "deletionTimestamp" in found["metadata"]


def _labels(found: Json) -> Mapping[str, str]:
    labels: Mapping[str, str] = found["metadata"].get("labels") or {}
    return labels
