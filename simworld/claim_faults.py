"""Faults and events of worlds with claims that others do not have. Each method is the kind of an action."""

import json
from typing import TYPE_CHECKING

from simworld.runtime.kernel import kernel

if TYPE_CHECKING:
    from simworld.world import World

SLOW_ENDS_S = (3.0, 25.0, 25.0)
"""Seconds that containers take to end if they end slowly. Kubelet waits for the preparation of a claim for 45 s."""


class ClaimFaults:
    """Changes the API server, the scheduler's informer, and nodes."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._history = world.history

    def turn_gate_off(self, gate: str) -> None:
        """The API server starts again with a feature gate off."""
        self._history.note("api server", f"starts again with {gate} off")
        self._world.claims.drop_fields_of(gate)
        self._world.api.drop_watches()

    def delay_slices(self, most_s: float, seconds: float) -> None:
        """The scheduler knows ResourceSlices late for a while."""
        self._history.note("kube-scheduler", f"follows slices up to {most_s:g} s late, for {seconds:g} s")
        scheduler = self._world.claims.scheduler
        scheduler.slices_late_s = most_s

        def hurry() -> None:
            scheduler.slices_late_s = 0.0

        self._world.end_fault_in(seconds, hurry)

    def end_slowly(self) -> None:
        """From now on, containers take long to end."""
        self._history.note("world", "has containers that end slowly")
        self._world.claims.ends_s = SLOW_ENDS_S

    def fence_gpu(self, which: int, gpu: int) -> None:
        """An operator fences a GPU for good: pods that run go on, and new pods do not get it."""
        node = self._world.node_of(which)
        fenced = node.box.gpus[gpu % len(node.box.gpus)]
        self._history.note("operator", f"fences GPU {fenced.minor} of {node.name}")
        living_there = self._history.on_node(node.name)
        running = [living.pod_uid for living in living_there if fenced.uuid in living.gpus]
        node.fenced.setdefault(fenced.uuid, frozenset(running))
        text = json.dumps({"uuid": sorted(node.fenced)})
        node.fence_file.write_text(text)

    def reboot_node(self, which: int, away_s: float) -> None:
        """A node boots: its processes and containers end, and the CDI folder is empty."""
        node = self._world.node_of(which)
        self._history.note(node.name, f"boots, which takes {away_s:g} s")
        node.kill_kubelet()
        node.kill_agent()
        node.runtime.lose_containers()
        node.booted_at = kernel().now
        self._world.end_fault_in(away_s, node.start_kubelet)
        self._world.end_fault_in(away_s * kernel().chance.random(), node.start_agent)
