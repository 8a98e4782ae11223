"""Looks once for containers that began while no agent was there, and then whether they still run."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from gpuagent.host.mps_client import daemon_began_at
from gpuagent.isolation.interface import Need
from gpuagent.isolation.mps.clients.unseen import ContainerStart, Unseen, reason, remaining, unseen
from gpuagent.isolation.mps.daemon import MpsDaemon
from gpuagent.isolation.mps.daemon_record import MpsRecord
from gpuagent.system.process_cgroups import ProcessCgroups, boot_s

log = logging.getLogger(__name__)

Starts = Callable[[], Iterable[ContainerStart]]
"""Reads when the containers of all pods began."""


class UnseenStarts:
    """The containers that may run without limits, for one thread; any thread may read `unlimited` and `left_out`.

    Args:
        record: has the time at which the former agent was last alive.
        starts: None if the agent does not see the processes of containers.
    """

    def __init__(self, record: MpsRecord, starts: Starts | None) -> None:
        self._record = record
        self._starts = starts
        self._containers: tuple[Unseen, ...] | None = None
        self.unlimited: Mapping[str, str] = {}
        """UID of a pod to why it may have no limits."""
        self.left_out: Mapping[str, str] = {}
        """UUID of its GPU to the same."""

    def look(self, need: Need, serving: Callable[[str], MpsDaemon]) -> None:
        """Look once, while the GPUs that containers hold have daemons that answer.

        Args:
            need: of the node.
            serving: the daemon of a GPU.
        """
        if self._starts is not None and (self._containers is None or self._containers):
            self._containers = self._find(need, serving, self._starts)
            self._name(need)

    def _find(self, need: Need, serving: Callable[[str], MpsDaemon], read: Starts) -> tuple[Unseen, ...] | None:
        if self._containers is not None:
            return remaining(self._containers, read())
        last_seen_at = self._record.last_seen_at
        if last_seen_at is None:
            return ()  # the first agent of the node: nothing of it can have started before
        if not need.knows_pods or (need.pods and not need.containers):
            return None
        daemons = {}
        for gpu in need.gpus:
            began_at = daemon_began_at(serving(gpu.uuid).pipe_dir)
            if began_at is not None:
                daemons[gpu.uuid] = began_at
        gpus = {uid: shares.containers for uid, shares in need.pods.items()}
        return unseen(read(), need.containers, gpus, daemons, last_seen_at)

    def _name(self, need: Need) -> None:
        names = {gpu.uuid: f"GPU {gpu.index}" for gpu in need.gpus}
        unlimited: dict[str, str] = {}
        left_out: dict[str, str] = {}
        for container in self._containers or ():
            uid = container.start.pod
            why = reason(container, names)
            unlimited[uid] = why
            pod = need.pod_names.get(uid, f"with UID {uid}")
            left_out.update(dict.fromkeys(container.gpus, f"pod {pod} may have no limits: {why}"))
        if unlimited.keys() - self.unlimited.keys():
            log.error("Containers began without MPS", extra={"pods": ",".join(sorted(unlimited))})
        self.unlimited = unlimited
        self.left_out = left_out


def container_starts() -> list[ContainerStart]:
    """When the containers of all pods began, by their oldest process."""
    began: dict[tuple[str, str], float] = {}
    # The kernel counts from the start of the machine.
    offset_s = time.time() - boot_s()
    for place, at_s in ProcessCgroups().all():
        if place.pod and place.container:
            container = place.pod, place.container
            began[container] = min(began.get(container, at_s), at_s)
    return [ContainerStart(pod, container, at_s + offset_s) for (pod, container), at_s in began.items()]
