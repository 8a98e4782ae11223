"""When a job that has waited for too long keeps nodes from later pods of its own priority, and when it pauses.

Its turn begins after the patience, and takes as long as the patience. Then it pauses for twice as long. Each turn and
each pause takes twice as long as the one before. So in the end, a turn is as long as other pods run. In patiences:

| waited | 0-1 | 1-2 | 2-4 | 4-6 | 6-10 | 10-14 | 14-22 | 22-30 |
|---|---|---|---|---|---|---|---|---|
| | | turn | pause | turn | pause | turn | pause | turn |
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverdueTurn:
    """Where a job stands.

    Attributes:
        keeps_nodes: it has its turn.
        until_s: for how long it will have waited when that changes.
    """

    keeps_nodes: bool
    until_s: float


def overdue_turn(waited_s: float, patience_s: float) -> OverdueTurn:
    """Where a job stands that has waited so long; `patience_s` is more than 0."""
    begins_s = patience_s
    length_s = patience_s
    if waited_s < begins_s:
        return OverdueTurn(keeps_nodes=False, until_s=begins_s)
    # The pause after a turn is twice as long.
    while waited_s >= begins_s + 3 * length_s:
        begins_s += 3 * length_s
        length_s *= 2
    ends_s = begins_s + length_s
    if waited_s < ends_s:
        return OverdueTurn(keeps_nodes=True, until_s=ends_s)
    return OverdueTurn(keeps_nodes=False, until_s=begins_s + 3 * length_s)
