"""The desired state of a ConfigMap, and the smallest change that reaches it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Json = Mapping[str, Any]
Texts = Mapping[str, str | None]
"""Text by key; None for a key that must be absent."""


MANAGED_BY = "app.kubernetes.io/managed-by"
TAKEN_OVER = "gpuagent-taken-over"
"""Label of a ConfigMap that another author created and that has keys of the agent. The agent never deletes it."""


@dataclass(frozen=True, slots=True)
class ConfigMapFacts:
    """The desired state of one ConfigMap; everything else in it belongs to others.

    Attributes:
        namespace: its namespace; the API server does not create it.
        name: a DNS subdomain, at most 253 characters.
        labels: value by label key, at most 63 characters each. They also mark the object as the agent's: the agent
            never deletes an object without all of them.
        data: text by key; None for a key that must be absent. None in place of the mapping: all keys of the agent must
            be absent, and also the object if it has nothing else.
        keys: every key of the data that the agent may write and remove.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    data: Texts | None
    keys: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """One request: ``create`` with the object, ``patch`` with a merge patch, ``delete`` with DeleteOptions.

    A patch and a deletion name the version that the agent read. So the server refuses them (409) if another client has
    changed the object since.
    """

    verb: Literal["create", "patch", "delete"]
    body: dict[str, Any]


def change(present: Json | None, facts: ConfigMapFacts) -> Change | None:
    """Return the change that makes ``present`` (decoded JSON as observed, None: there is none) agree with ``facts``.

    None if they agree already, or if the object to remove is not the agent's or has a deletion timestamp.
    """
    if facts.data is None:
        return _removal(present, facts)
    if present is None:
        return _creation(facts, facts.data)
    return _patch(present, facts, facts.data)


def _removal(present: Json | None, facts: ConfigMapFacts) -> Change | None:
    if present is None or not _is_ours(present, facts):
        return None
    if _is_being_deleted(present):
        return None
    if _is_shared(present, facts):
        return _withdrawal(present, facts)
    return _deletion(present)


def _creation(facts: ConfigMapFacts, data: Texts) -> Change:
    texts = {key: text for key, text in data.items() if text is not None}
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": facts.namespace,
            "name": facts.name,
            "labels": dict(facts.labels),
        },
        "data": texts,
    }
    return Change("create", body)


def _patch(present: Json, facts: ConfigMapFacts, data: Texts) -> Change | None:
    present_labels = _labels(present)
    is_taken_over = TAKEN_OVER in present_labels
    labels = _difference(present_labels, facts.labels)
    if not is_taken_over and _is_foreign(present, facts):
        labels[TAKEN_OVER] = "true"
        is_taken_over = True
    if is_taken_over:
        # Another author manages it, and says so itself.
        labels.pop(MANAGED_BY, None)
    texts = _difference(_data(present), data)
    if not labels and not texts:
        return None
    metadata = _version(present)
    if labels:
        metadata["labels"] = labels
    return _patched(metadata, texts)


def _withdrawal(present: Json, facts: ConfigMapFacts) -> Change:
    """Remove the agent's labels and keys, and leave the rest to its authors."""
    # In a merge patch, null removes a key.
    labels: dict[str, None] = {}
    for key, value in _labels(present).items():
        is_ours = facts.labels.get(key) == value
        if is_ours or key == TAKEN_OVER:
            labels[key] = None
    texts: dict[str, None] = {}
    for key in _data(present):
        if key in facts.keys:
            texts[key] = None
    metadata = _version(present)
    metadata["labels"] = labels
    return _patched(metadata, texts)


def _patched(metadata: dict[str, Any], texts: Texts) -> Change:
    body: dict[str, Any] = {"metadata": metadata}
    if texts:
        body["data"] = texts
    return Change("patch", body)


def _version(present: Json) -> dict[str, Any]:
    """The metadata that makes the server refuse the patch if another client has changed the object since."""
    metadata = present["metadata"]
    return {"resourceVersion": metadata["resourceVersion"]}


def _deletion(present: Json) -> Change:
    metadata = present["metadata"]
    body = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
    }
    return Change("delete", body)


def _difference(present: Json, wanted: Texts) -> dict[str, str | None]:
    """The wanted texts that are not there; None for a key to remove."""
    return {key: text for key, text in wanted.items() if present.get(key) != text}


def _is_ours(present: Json, facts: ConfigMapFacts) -> bool:
    labels = _labels(present)
    if TAKEN_OVER in labels:
        return True
    # Without labels to go by, any object would be the agent's.
    if not facts.labels:
        return False
    return facts.labels.items() <= labels.items()


def _is_foreign(present: Json, facts: ConfigMapFacts) -> bool:
    """Whether another author created it. An object with some of the agent's labels is still the agent's."""
    if not facts.labels:
        return False
    labels = _labels(present)
    manager = facts.labels.get(MANAGED_BY)
    has_other_manager = labels.get(MANAGED_BY, manager) != manager
    common = facts.labels.items() & labels.items()
    return has_other_manager or not common


def _is_shared(present: Json, facts: ConfigMapFacts) -> bool:
    """Whether it has data of other authors."""
    if TAKEN_OVER in _labels(present):
        return True
    others = _data(present).keys() - facts.keys
    return bool(others) or bool(present.get("binaryData"))


def _is_being_deleted(present: Json) -> bool:
    """Whether it is deleted and only finalizers keep it."""
    return "deletionTimestamp" in present["metadata"]


def _labels(present: Json) -> Mapping[str, str]:
    metadata = present["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    return labels


def _data(present: Json) -> Mapping[str, str]:
    data: Mapping[str, str] = present.get("data") or {}
    return data
