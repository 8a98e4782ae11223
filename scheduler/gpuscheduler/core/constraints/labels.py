"""Labels as small values: a cluster has tens of thousands of pods and nodes, most with equal ones."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from sys import intern

MOST_LABELS = 128
"""Labels of a pod that are kept. Kubernetes sets no limit, and any author of pods may write thousands."""
_OF_ONE_POD = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "statefulset.kubernetes.io/pod-name",
    }
)
"""Labels that controllers write with another value on each pod of a template."""
NOT_KEPT = "?"
"""Stands for the value of such a label where it is not kept. No label of Kubernetes has this value."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one object.

    Attributes:
        keys: in order.
        values: of the keys.
    """

    keys: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def only(self, kept: Collection[str]) -> "Labels":
        """Those of these labels that the object has."""
        keys: list[str] = []
        values: list[str] = []
        for key, value in zip(self.keys, self.values, strict=True):
            if key in kept:
                keys.append(key)
                values.append(value)
        return Labels(tuple(keys), tuple(values))

    def has_all(self, keys: Iterable[str]) -> bool:
        """Whether the object has these labels."""
        return all(self.get(key) is not None for key in keys)

    def get(self, key: str) -> str | None:
        """The value of a label; None if the object does not have it."""
        index = bisect_left(self.keys, key)
        if index < len(self.keys) and self.keys[index] == key:
            return self.values[index]
        return None


NO_LABELS = Labels()


def labels_of(written: Mapping[str, object]) -> Labels:
    """The labels that a pod has; values of another type than text are left out."""
    kept = _texts(written)[:MOST_LABELS]
    keys = tuple(key for key, _ in kept)
    values = tuple(value for _, value in kept)
    return _first(Labels(_first_texts(keys), _first_texts(values)))


def labels_of_node(written: Mapping[str, object]) -> Labels:
    """All labels of a node, which may be hundreds where its features are discovered: no author of pods writes them."""
    texts = _texts(written)
    keys = tuple(key for key, _ in texts)
    # Thousands of nodes have the same few values.
    values = tuple(intern(value) for _, value in texts)
    return Labels(_first_texts(keys), values)


def _texts(written: Mapping[str, object]) -> list[tuple[str, str]]:
    return sorted((key, value) for key, value in written.items() if isinstance(value, str))


def labels_on_node(written: Mapping[str, object]) -> Labels:
    """The labels of a pod without GPUs on a node, without the values that tell it from the others of its template.

    Hardly any rule looks at these, and with them, tens of thousands of pods would share no value.
    """
    if _OF_ONE_POD.isdisjoint(written):
        return labels_of(written)
    return labels_of({key: NOT_KEPT if key in _OF_ONE_POD else value for key, value in written.items()})


@lru_cache(maxsize=4096)
def _first(labels: Labels) -> Labels:
    """The first value that was equal to this one."""
    return labels


@lru_cache(maxsize=4096)
def _first_texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The first value that was equal to this one."""
    return texts
