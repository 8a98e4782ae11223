"""The cgroups of pods and containers: where they are, and which ones exist. Reads only.

Kubelet keeps all pods below one cgroup, the pods root. Its two cgroup drivers name cgroups differently::

    kubepods/burstable/pod<UID>/<container>                                            cgroupfs
    kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<UID with _>.slice   systemd

With kubelet's `--cgroup-root`, as on kind, the pods root is deeper: ``kubelet/kubepods`` or
``kubelet.slice/kubelet-kubepods.slice``.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuagent.system.printable import error_words, printable

CGROUP_ROOT = Path("/sys/fs/cgroup")
"""Where cgroup v2 is mounted on every node that has it."""
CRUN_CHILD = "container"
"""The child of a container's cgroup in which crun puts the processes, if systemd manages the cgroup."""
_DEPTH = 5
"""How deep below the cgroup root the pods root is looked for."""
_MOST_DIRECTORIES = 20_000
"""As many are read in search of the pods root. Nodes have a few hundred outside of it."""
_QOS = ("", "burstable", "besteffort")
"""Quality-of-service classes with a directory of their own; guaranteed pods are directly below the pods root."""
_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
"""A pod's UID. A static pod's is a hash of its file, without dashes."""
_POD_UID = re.compile(_UID)
_PODS_ROOT = re.compile(r"kubepods|(?:[A-Za-z0-9_.\\]+-)*kubepods\.slice")
_CONTAINER = re.compile(r"((?:[a-z]+-)*)([0-9a-f]{64})(?:\.scope)?")
"""containerd ``<id>`` and ``cri-containerd-<id>.scope``; CRI-O ``crio-<id>`` with or without ``.scope``; Docker."""
_MONITOR = "conmon-"
"""CRI-O's monitor of a container has a cgroup beside it. It is not a container and uses no GPU."""
_IS_A_LINK = frozenset({errno.ELOOP, errno.ENOTDIR})


class CgroupError(Exception):
    """A cgroup cannot be used; the text says which and why."""


class NoCgroupError(CgroupError):
    """The cgroup does not exist, for example because its pod has ended."""


class PodsRootError(CgroupError):
    """The cgroup of all pods cannot be determined; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a directory apart from another one that later has the same name."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class PodsRoot:
    """The cgroup of all pods, such as ``/sys/fs/cgroup/kubepods.slice``."""

    path: Path

    @property
    def is_systemd(self) -> bool:
        """Whether kubelet's cgroup driver is systemd, else it is cgroupfs."""
        return self.path.suffix == ".slice"

    def pod_directory(self, pod: str) -> Path | None:
        """The cgroup of the pod with this UID, in whatever class; None if there is none."""
        if not is_pod_uid(pod):
            return None
        for qos in _QOS:
            directory = self._class_directory(qos) / self._pod_name(qos, pod)
            if _is_directory(directory):
                return directory
        return None

    def pods(self) -> dict[str, Path]:
        """The cgroup of every pod on the node, by UID."""
        directories = {}
        for qos in _QOS:
            for entry in _directories(self._class_directory(qos)):
                pod = self.pod_in(qos, entry.name)
                if pod:
                    directories[pod] = Path(entry.path)
        return directories

    def class_directories(self) -> Iterator[tuple[str, Path]]:
        """Each quality-of-service class, with the directory that holds its pods. Not all need exist."""
        for qos in _QOS:
            yield qos, self._class_directory(qos)

    def pod_in(self, qos: str, name: str) -> str | None:
        """UID of the pod whose cgroup has this name in the directory of a class; None if it is not a pod's."""
        # A UID has no "p", so this is its beginning.
        _, _, uid = name.removesuffix(".slice").rpartition("pod")
        pod = uid.replace("_", "-")
        # The name is built again, so that no other spelling counts as the pod's.
        is_a_pods = is_pod_uid(pod) and name == self._pod_name(qos, pod)
        return pod if is_a_pods else None

    def _class_directory(self, qos: str) -> Path:
        if not qos:
            return self.path
        return self.path / (f"{self._stem}-{qos}.slice" if self.is_systemd else qos)

    def _pod_name(self, qos: str, pod: str) -> str:
        if not self.is_systemd:
            return f"pod{pod}"
        # In a slice's name, a dash separates it from its parent. So kubelet writes the UID with another character.
        uid = pod.replace("-", "_")
        return f"{self._slice_prefix(qos)}pod{uid}.slice"

    def _slice_prefix(self, qos: str) -> str:
        return f"{self._stem}-{qos}-" if qos else f"{self._stem}-"

    @property
    def _stem(self) -> str:
        return self.path.name.removesuffix(".slice")


def is_pod_uid(text: str) -> bool:
    """Whether `text` has the form of a pod's UID in the name of its cgroup."""
    return bool(_POD_UID.fullmatch(text))


def container_id(leaf: str) -> str | None:
    """Id of the container whose cgroup in the pod's is `leaf`, or the child of it that crun makes; None: no container.

    The pod's sandbox counts as a container.
    """
    name, _, child = leaf.partition("/")
    match = _CONTAINER.fullmatch(name)
    has_other_child = "/" in leaf and child != CRUN_CHILD
    if match is None or has_other_child or _MONITOR in match[1]:
        return None
    return match[2]


def leaves(pod_directory: Path) -> tuple[str, ...]:
    """Names of the cgroups of a pod's containers, such as ``crio-<id>.scope`` and ``crio-<id>.scope/container``.

    A pod that has ended has none.
    """
    names = []
    for entry in _directories(pod_directory):
        if container_id(entry.name) is None:
            continue
        names.append(entry.name)
        if _is_directory(pod_directory / entry.name / CRUN_CHILD):
            names.append(f"{entry.name}/{CRUN_CHILD}")
    return tuple(names)


def find_pods_root(cgroup_root: Path, own_pod: str = "") -> PodsRoot:
    """Search the pods root below `cgroup_root`.

    Args:
        cgroup_root: where cgroups are mounted.
        own_pod: UID of the pod that this process runs in. It decides if a node has several kubelets' cgroups, for
            example one that kubelet left when its cgroup driver was changed; empty: not known.

    Raises:
        PodsRootError: there is none, or there are several.
    """
    candidates = [PodsRoot(path) for path in pods_roots(cgroup_root)]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise PodsRootError(
            f"no cgroup of pods (kubepods or kubepods.slice) was found below {cgroup_root}: kubelet runs with "
            "cgroupsPerQOS: false, or the node's cgroups are not mounted there. Set cgroupsPerQOS: true in kubelet's "
            "configuration, or name the cgroup with --pods-cgroup"
        )
    with_own_pod = [root for root in candidates if root.pod_directory(own_pod)]
    if len(with_own_pod) == 1:
        return with_own_pod[0]
    names = ", ".join(printable(str(root.path)) for root in candidates[:4])
    raise PodsRootError(
        f"{len(candidates)} cgroups may be that of the pods ({names}), and the own pod's is not in exactly one of "
        "them: name the right one with --pods-cgroup"
    )


def named_pods_root(cgroup_root: Path, name: str) -> PodsRoot:
    """The pods root with this path below `cgroup_root`, such as ``kubelet.slice/kubelet-kubepods.slice``.

    Raises:
        PodsRootError: there is no such cgroup.
    """
    relative = Path(name.lstrip("/"))
    path = cgroup_root / relative
    try:
        identify(cgroup_root, path)
    except CgroupError as err:
        raise PodsRootError(f"--pods-cgroup {printable(name)}: {err}") from err
    return PodsRoot(path)


def identify(root: Path, directory: Path) -> Identity:
    """Identity of a directory below `root`, reached without a link and without leaving root's filesystem.

    Raises:
        NoCgroupError: it does not exist.
        CgroupError: its path does not stay below `root`, has a link, leads to another filesystem, or cannot be read.
    """
    is_below = directory.parts[: len(root.parts)] == root.parts
    if not is_below or ".." in directory.parts:
        raise CgroupError(f"{printable(str(directory))} is not below {root}")
    try:
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise _unusable(root, err) from err
    try:
        return _walk(root, directory.parts[len(root.parts) :], descriptor)
    finally:
        os.close(descriptor)


def _walk(root: Path, parts: tuple[str, ...], start: int) -> Identity:
    """Go down step by step: each directory is opened in the one before, so no link on the way is followed."""
    device = os.fstat(start).st_dev
    path = root
    current = os.dup(start)
    try:
        for part in parts:
            path /= part
            try:
                below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
            except (OSError, ValueError) as err:
                raise _unusable(path, err) from err
            os.close(current)
            current = below
            if os.fstat(current).st_dev != device:
                raise CgroupError(f"{printable(str(path))} is on another filesystem than {root}")
        status = os.fstat(current)
        return Identity(status.st_dev, status.st_ino)
    finally:
        os.close(current)


def _unusable(path: Path, err: OSError | ValueError) -> CgroupError:
    shown = printable(str(path))
    number = err.errno if isinstance(err, OSError) else None
    if number in {errno.ENOENT, errno.ENODEV}:  # the second: it is being removed
        return NoCgroupError(f"there is no cgroup {shown}: its pod or container has ended")
    if number in _IS_A_LINK:
        return CgroupError(f"{shown} is a link or a file, not a cgroup")
    words = os.strerror(number) if number else error_words(err)
    return CgroupError(f"cgroup {shown} cannot be opened: {words}")


def pods_roots(cgroup_root: Path) -> list[Path]:
    """Cgroups that may be the pods root, by their names; none if it cannot be read.

    The search goes `_DEPTH` levels down. What is below a candidate belongs to pods, so it is not read.
    """
    candidates: list[Path] = []
    level = [cgroup_root]
    read = 0
    for _ in range(_DEPTH):
        below: list[Path] = []
        for directory in level:
            read += 1
            if read > _MOST_DIRECTORIES:
                return candidates
            for entry in _directories(directory):
                is_candidate = _PODS_ROOT.fullmatch(entry.name)
                target = candidates if is_candidate else below
                target.append(Path(entry.path))
        level = below
    return candidates


def _directories(directory: Path) -> list["os.DirEntry[str]"]:
    """Directories in a directory, links left out; none if it does not exist any more."""
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _is_directory(path: Path) -> bool:
    """Whether it is a directory itself, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
