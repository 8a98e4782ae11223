"""What many scenarios come to, for the last lines of `make simulate`."""

from dataclasses import dataclass, field

from simworld.claim_faults import ClaimFaults
from simworld.scenario import Action, Scenario
from simworld.world import PEOPLE, World


@dataclass(slots=True)
class Totals:
    """Sums over the scenarios that have ended.

    Attributes:
        first: the first seed.
        seeds: scenarios that were played.
        turns: task switches, which are the events of the simulated machine.
        starts: containers that started.
        faults: actions that are faults and no calls of people.
        virtual_s: virtual seconds.
        failed: seeds that broke a promise.
    """

    first: int
    seeds: int = 0
    turns: int = 0
    starts: int = 0
    faults: int = 0
    virtual_s: float = 0.0
    failed: list[int] = field(default_factory=list)

    def add(self, scenario: Scenario, *, turns: int, starts: int, virtual_s: float) -> None:
        """Count a scenario."""
        self.seeds += 1
        self.turns += turns
        self.starts += starts
        self.virtual_s += virtual_s
        self.faults += sum(_is_fault(action) for action in scenario.actions)

    def words(self, took_s: float, largest_mib: float) -> str:
        """All of it in one line."""
        rate = self.turns / took_s if took_s else 0.0
        hours = self.virtual_s / 3600
        return (
            f"{self.seeds} seeds from {self.first}: {len(self.failed)} broken, {self.starts} containers, "
            f"{self.faults} faults, {hours:.1f} virtual hours, {self.turns} turns, {rate:.0f} a second, "
            f"{largest_mib:.0f} MiB in the largest process"
        )


def _is_fault(action: Action) -> bool:
    """Whether an action is neither a call of people or controllers nor a property of the world.

    Those with claims and with jobs are methods of other classes.
    """
    is_of_machines = hasattr(World, action.kind) or hasattr(ClaimFaults, action.kind)
    return is_of_machines and action.kind not in (*PEOPLE, "use_one_loop")
