"""A pod's place among pods that start together."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class GangSource(StrEnum):
    """What says which pods belong together. The value stands before the name in messages to people."""

    LABELS = "job"
    """This project's labels `gpu-topology` and `gpu-topology-replica`."""

    @property
    def number_in(self) -> str:
        """Where the number of pods is written, for messages."""
        return _NUMBER_IN[self]


_NUMBER_IN = {GangSource.LABELS: "label gpu-topology-replica"}


class GangKey(NamedTuple):
    """What tells gangs apart: things of different sources may have one name, and namespaces do not share gangs."""

    namespace: str
    source: GangSource
    name: str

    @property
    def title(self) -> str:
        """The gang as people know it."""
        return f"{self.source} {self.name}"


@dataclass(frozen=True, slots=True)
class Gang:
    """A pod's place among pods that start together, in the namespace of the pod.

    Attributes:
        source: what says so.
        name: of the gang, unique in its namespace and source.
        pods: how many the gang has; None if what is written is not a number.
        minimum: how many of them have to start together; None for all.
    """

    source: GangSource
    name: str
    pods: int | None
    minimum: int | None = None

    def key_in(self, namespace: str) -> GangKey:
        """What tells it from other gangs."""
        return GangKey(namespace, self.source, self.name)
