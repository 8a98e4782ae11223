"""Which cgroup is which container, before the pod itself shows it: kubelet starts the containers of a pod in turn."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuagent.host.cgroups import container_id

_MOST_NAMES = 4096
"""Containers whose names are kept until their pods show them."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A container that kubelet is about to start.

    Attributes:
        container: its name.
        present: names of the cgroups of the pod's containers that were there before.
    """

    container: str
    present: frozenset[str]


class ContainerNames:
    """Names of containers by their ids at the runtime. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: dict[str, Awaited] = {}
        self._names: dict[str, str] = {}

    def expect(self, uid: str, container: str, present: Collection[str]) -> None:
        """The next new cgroup of this pod is this container's."""
        with self._lock:
            self._awaited[uid] = Awaited(container, frozenset(present))

    def appeared(self, uid: str, leaf: str) -> None:
        """A cgroup of a container has appeared."""
        own_id = container_id(leaf)
        with self._lock:
            awaited = self._awaited.get(uid)
            if awaited is None or own_id is None or leaf in awaited.present:
                return
            self._names[own_id] = awaited.container
            # Its child, which crun makes, has the same id. Any other cgroup that comes now is not the awaited one.
            del self._awaited[uid]

    def joined(self, shown: Mapping[str, str]) -> dict[str, str]:
        """These names and those that pods show, which are certain."""
        with self._lock:
            return {**self._names, **shown}

    def forget(self, ended: Collection[str], shown: Mapping[str, str]) -> None:
        """Drop what is not needed any more.

        Args:
            ended: UIDs of pods.
            shown: the names that pods show themselves by now.
        """
        with self._lock:
            for uid in ended:
                self._awaited.pop(uid, None)
            names = {own_id: name for own_id, name in self._names.items() if own_id not in shown}
            self._names = names if len(names) < _MOST_NAMES else {}
