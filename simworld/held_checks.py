"""Holds what gpuscheduler keeps for pods against the promises: nothing for those that cannot start.

`job_checks` does so for the jobs of controllers, and this for all pods. It looks after each event that the core took.
"""

from typing import TYPE_CHECKING

from gpuscheduler.core.scheduling import Scheduling
from simworld.parts.job_controllers import has_foreign_gate
from simworld.runtime.kernel import kernel
from standin.api.objects import Json

if TYPE_CHECKING:
    from simworld.world import World

HELD_S = 5.0
"""How long GPUs may be held for a pod that is gone: a watch may be behind by 3 s."""
NOMINATED_IN_VAIN_S = 15.0
"""How long a pod may be nominated for a node that it does not get: kube-scheduler tries it again within 10 s."""


class HeldChecks:
    """Looks at reservations and nominations of pods that wait."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._since: dict[tuple[str, str], float] = {}

    def forget(self) -> None:
        """Measure from now on: every process has stood still."""
        self._since.clear()

    def check(self, core: Scheduling) -> None:
        """Check what the core holds now."""
        if self._world.api.is_away:
            self._since.clear()
            return
        waiting = {pod["metadata"]["uid"]: pod for pod in self._world.api.objects.peek("pods") if _waits(pod)}
        in_vain: dict[tuple[str, str], str] = {}
        for uid, reservation in core.reservations._all.items():  # noqa: SLF001 (what the process knows)
            name = self._world.history.name(uid)
            pod = waiting.get(uid)
            if pod is None and not reservation.sent:
                in_vain[uid, "held"] = f"GPUs are held for {name}, which is gone, bound, or being deleted"
            if pod is not None and has_foreign_gate(pod):
                self._world.history.break_promise(f"GPUs are reserved for {name}, which has a scheduling gate")
        for uid, pod in waiting.items():
            node = (pod.get("status") or {}).get("nominatedNodeName")
            held = core.reservations.get(uid)
            if node and (held is None or node not in held.choices):
                name = self._world.history.name(uid)
                in_vain[uid, "nominated"] = f"{name} is nominated for {node}, where nothing is reserved for it"
        self._tell(in_vain)

    def _tell(self, in_vain: dict[tuple[str, str], str]) -> None:
        """Break a promise for what has lasted for too long."""
        now = kernel().now
        self._since = {key: self._since.get(key, now) for key in in_vain}
        for key, since in self._since.items():
            _, kind = key
            bound_s = HELD_S if kind == "held" else NOMINATED_IN_VAIN_S
            if now - since > bound_s:
                self._world.history.break_promise(in_vain[key])


def _waits(pod: Json) -> bool:
    """Whether a pod waits for a node."""
    return not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
