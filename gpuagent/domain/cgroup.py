"""Which container and pod a process belongs to, as the text of its /proc/PID/cgroup tells."""

import re
from dataclasses import dataclass

_CONTAINER = re.compile(r"(?:^|[-:])(?<!conmon-)([0-9a-f]{64})(?:\.scope)?$")
"""containerd ``<id>``, ``cri-containerd-<id>.scope``, ``<slice>:cri-containerd:<id>``; CRI-O ``crio-<id>``; Docker."""
_POD = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:$|\.slice)")
"""Drivers cgroupfs ``pod<uid>`` and systemd ``kubepods-burstable-pod<uid with _>.slice``."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs.

    Attributes:
        containers: ids of every container that its cgroups name, outermost first. More than one where containers are
            nested: a node that is itself a container has one around all pods, Docker in a pod makes some within.
        pods: UIDs of pods, likewise.
    """

    containers: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


def parse_cgroup(text: str) -> Place:
    """Read /proc/PID/cgroup: cgroup v1, v2 or both; seen from whichever cgroup namespace.

    A line is ``<hierarchy>:<controllers>:<path>``. In v1 each hierarchy has a path of its own, and not all need name
    the container; from within a namespace paths begin with ``/..``. Lines of any other shape mean nothing.
    """
    containers: dict[str, None] = {}
    pods: dict[str, None] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        for part in path.split("/"):
            # A slice may be followed by the container in the same part; the pod stands in the first.
            if found := _POD.search(part.partition(":")[0]):
                pods[found[1].replace("_", "-")] = None
            if found := _CONTAINER.search(part):
                containers[found[1]] = None
    return Place(tuple(containers), tuple(pods))
