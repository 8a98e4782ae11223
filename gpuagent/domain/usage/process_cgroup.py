"""Finds the container and pod of a process in the text of its /proc/PID/cgroup."""

import re
from dataclasses import dataclass

_CONTAINER = re.compile(r"(?:^|[-:])(?<!conmon-)([0-9a-f]{64})(?:\.scope)?$")
"""containerd ``<id>``, ``cri-containerd-<id>.scope``, ``<slice>:cri-containerd:<id>``; CRI-O ``crio-<id>``; Docker."""
_POD = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:$|\.slice)")
"""Drivers cgroupfs ``pod<uid>`` and systemd ``kubepods-burstable-pod<uid with _>.slice``; a static pod's is a hash."""


@dataclass(frozen=True, slots=True)
class ProcessContainer:
    """The container and pod of a process.

    Attributes:
        container: id of its container; None if its cgroups do not show it.
        pod: UID of its pod; None if its cgroups do not show it. For a static pod, it is the hash of its file, not the
            UID at the API server.
        of_agent: it is in the cgroups of the agent, as MPS servers are, and so in no pod that holds a GPU.
    """

    container: str | None = None
    pod: str | None = None
    of_agent: bool = False


def parse_cgroup(text: str) -> ProcessContainer:
    """Read /proc/PID/cgroup: cgroup v1, v2 or both, seen from any cgroup namespace.

    A line is ``<hierarchy>:<controllers>:<path>``. In v1 each hierarchy has a path of its own, and not all need name
    the container; from within a namespace paths begin with ``/..``. Lines of any other shape are ignored.

    The outermost pod counts, and the first container in it: a container may make cgroups within its own, with any name.
    """
    places = set()
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        places.add(_place(path))
    pods = {place.pod for place in places if place.pod}
    if len(pods) > 1:
        return ProcessContainer()
    pod = pods.pop() if pods else None
    containers = {place.container for place in places if place.pod == pod and place.container}
    return ProcessContainer(containers.pop() if len(containers) == 1 else None, pod)


def _place(path: str) -> ProcessContainer:
    """The container and pod in the path of one hierarchy."""
    pod = None
    container = None
    for part in path.split("/"):
        # One part may have slice and container; the pod is in the first field.
        pod_match = _POD.search(part.partition(":")[0])
        if pod_match and not pod:
            pod = pod_match[1].replace("_", "-")
            container = None  # a container id before the pod is that of the node itself, if the node is a container
        container_match = _CONTAINER.search(part)
        if container_match and not container:
            container = container_match[1]
            if pod:
                break
    return ProcessContainer(container, pod)
