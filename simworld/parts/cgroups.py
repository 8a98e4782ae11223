"""The cgroups of the pods of one node: directories, as kubelet and a container runtime make and remove them."""

import hashlib
from pathlib import Path

from gpuagent.host.cgroups import PodsRoot


class NodeCgroups:
    """Makes and removes the cgroups of pods and of their containers.

    Args:
        root: where cgroups are mounted.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pods_root = PodsRoot(root / "kubepods")
        self.pods_root.path.mkdir(parents=True)
        # As with cgroup v2.
        (root / "cgroup.controllers").touch()
        self._containers_made = 0
        self._ids: dict[tuple[str, str], str] = {}

    def container_id(self, uid: str, container: str) -> str:
        """The id of a container that was made; that of the last one if it was made several times."""
        return self._ids[uid, container]

    def make_pod(self, uid: str) -> None:
        """Make the cgroup of a pod, unless it is there."""
        self.pod(uid).mkdir(exist_ok=True)

    def make_container(self, uid: str, container: str) -> None:
        """Make the cgroup of a container, in the place of a former one of the same name."""
        self.remove_container(uid, container)
        self._containers_made += 1
        text = f"{uid}/{container}/{self._containers_made}"
        self._ids[uid, container] = hashlib.sha256(text.encode()).hexdigest()
        self.container(uid, container).mkdir()

    def container(self, uid: str, container: str) -> Path:
        """The cgroup of a container that was made."""
        return self.pod(uid) / self._ids[uid, container]

    def remove_container(self, uid: str, container: str) -> None:
        """Remove the cgroup of a container, if there is one."""
        if (uid, container) in self._ids:
            self.container(uid, container).rmdir()
            del self._ids[uid, container]

    def remove_pod(self, uid: str) -> None:
        """Remove the cgroup of a pod and those of its containers, if it is there."""
        for owner, container in list(self._ids):
            if owner == uid:
                self.remove_container(uid, container)
        directory = self.pod(uid)
        if directory.is_dir():
            directory.rmdir()

    def pod(self, uid: str) -> Path:
        """The cgroup of a pod, whether it is there or not."""
        return self.pods_root.path / f"pod{uid}"
