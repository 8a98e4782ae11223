"""Which cgroup is which container, before the pod itself shows it: kubelet starts the containers of a pod in turn.

A guess may be wrong. For example, a container that kubelet asks about may fail before it has a cgroup, and then the
next cgroup is that of another container. What the pod shows replaces every guess.
"""

import threading
from collections.abc import Collection, Mapping

from gpuagent.host.cgroups import container_id
from gpuagent.isolation.limits.plan import STRANGER

_MOST_NAMES = 4096
"""Containers whose names are kept until their pods show them."""


class ContainerNames:
    """Names of containers by their ids at the runtime. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: dict[str, str] = {}
        """UID of a pod to the container that is about to start."""
        self._present: dict[str, frozenset[str]] = {}
        """UID of each pod of which a container was expected to the cgroups that were there then."""
        self._names: dict[str, dict[str, str]] = {}
        """UID of such a pod to the names of its containers by their ids."""

    def expect(self, uid: str, container: str, present: Collection[str]) -> None:
        """The next new cgroup of this pod is this container's; `present` are those of its containers now."""
        with self._lock:
            self._awaited[uid] = container
            self._present[uid] = frozenset(present)
            names = self._names.setdefault(uid, {})
            for own_id, name in names.items():
                if name == container:
                    # The container is not running, so what was taken for it is another one.
                    names[own_id] = STRANGER

    def appeared(self, uid: str, leaf: str, *, is_young: bool, may_be_claiming: bool) -> None:
        """A cgroup of a container has appeared.

        Args:
            uid: of its pod.
            leaf: its name.
            is_young: the pod has a share, and this agent has run for as long as the pod.
            may_be_claiming: containers of the pod use claims.
        """
        own_id = container_id(leaf)
        with self._lock:
            if is_young:
                self._present.setdefault(uid, frozenset())
            # Kubelet may have asked the agent's former run about a container of an older pod.
            is_known = uid in self._present
            if not is_known or own_id is None or leaf in self._present[uid]:
                return
            names = self._names.setdefault(uid, {})
            if own_id in names:
                return  # reported twice; or its child, which crun makes
            name = self._awaited.pop(uid, None)
            if name is not None:
                names[own_id] = name
            elif not may_be_claiming:
                # Kubelet asks about each other container with a share, so one that comes unasked has none.
                names[own_id] = STRANGER

    def joined(self, shown: Mapping[str, str]) -> dict[str, str]:
        """These names and those that pods show, which are certain. `STRANGER`: a container without a share."""
        joined: dict[str, str] = {}
        with self._lock:
            for names in self._names.values():
                joined.update(names)
        joined.update(shown)
        return joined

    def has_misnamed(self, shown: Mapping[str, str]) -> bool:
        """Whether pods show another name for one of these containers: a guess was wrong, or had less than its share."""
        with self._lock:
            for names in self._names.values():
                for own_id, name in names.items():
                    if shown.get(own_id, name) != name:
                        return True
        return False

    def forget(self, ended: Collection[str], shown: Mapping[str, str]) -> None:
        """Drop what is not needed any more.

        Args:
            ended: UIDs of pods.
            shown: the names that pods show themselves by now.
        """
        with self._lock:
            for uid in ended:
                self._awaited.pop(uid, None)
                self._present.pop(uid, None)
                self._names.pop(uid, None)
            count = 0
            for uid, names in self._names.items():
                self._names[uid] = {own_id: name for own_id, name in names.items() if own_id not in shown}
                count += len(self._names[uid])
            if count >= _MOST_NAMES:
                # Without a pod's former cgroups, those that are reported again would count as strangers.
                self._names = {}
                self._present = {}
