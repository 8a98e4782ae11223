"""Faults of isolation drivers. Each method is the kind of an action, and does nothing on nodes without a driver."""

from typing import TYPE_CHECKING

from simworld.parts.limits_helper import ANSWERED, LOST, LimitsHelper

if TYPE_CHECKING:
    from simworld.parts.node import SimulatedNode
    from simworld.world import World


class IsolationFaults:
    """Ends, slows and strikes the helpers of driver `limits`."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._history = world.history

    def restart_limits(self, which: int, away_s: float) -> None:
        """The helper is killed. What it has set stays in force."""
        helper = self._world.node_of(which).limits
        if helper is not None:
            self._restart(helper, away_s)

    def _restart(self, helper: LimitsHelper, away_s: float) -> None:
        self._history.note(helper.actor, f"is killed, for {away_s:g} s")
        # Before its own end, which may be that of the task that runs.
        self._world.end_fault_in(away_s, helper.start)
        helper.kill()

    def slow_limits(self, which: int, most_s: float, seconds: float) -> None:
        """The helper answers late."""
        helper = self._world.node_of(which).limits
        if helper is None:
            return
        self._history.note(helper.actor, f"answers up to {most_s:g} s late, for {seconds:g} s")
        helper.disturb(slow_s=most_s)
        self._world.end_fault_in(seconds, lambda: helper.disturb(slow_s=0.0))

    def refuse_limits(self, which: int, seconds: float) -> None:
        """NVIDIA's driver sets no limit."""
        node = self._world.node_of(which)
        helper = node.limits
        if helper is None:
            return
        self._history.note(f"{node.name} driver", f"refuses to set limits, for {seconds:g} s")
        helper.disturb(refuses=True)
        self._world.end_fault_in(seconds, lambda: helper.disturb(refuses=False))

    def strike_limits(self, which: int, countdown: int, who_and_when: str, away_s: float) -> None:
        """The helper, the agent or kubelet ends beside the answer to the so-manieth limit of a pod from now on."""
        node = self._world.node_of(which)
        helper = node.limits
        if helper is None:
            return
        who, _, when = who_and_when.partition(" ")
        moment = LOST if when == "carried out" else ANSWERED
        left = [countdown]

        def strike(at: str) -> None:
            if at != moment:
                return
            left[0] -= 1
            if left[0] == 0:
                helper.struck = lambda _: None
                self._end(node, helper, who, away_s)

        helper.struck = strike

    def _end(self, node: "SimulatedNode", helper: LimitsHelper, who: str, away_s: float) -> None:
        which = self._world.nodes.index(node)
        if who == "agent":
            self._world.restart_agent(which, away_s)
        elif who == "kubelet":
            self._world.restart_kubelet(which, away_s)
        else:
            self._restart(helper, away_s)

    def repair(self) -> None:
        """End all of these faults."""
        for node in self._world.nodes:
            if node.limits is not None:
                node.limits.disturb(slow_s=0.0, refuses=False)
                node.limits.struck = lambda _: None
                node.limits.start()
