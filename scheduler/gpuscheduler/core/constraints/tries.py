"""How much work one call may do."""

CALL_TRIES = 1000
"""Tries of all nodes together in one call, which then takes less than 10 ms: any author of pods may write a pod whose
containers are hard to place, and thousands of nodes may have to be looked at for it."""
STEPS_A_TRY = 16
"""Requirements, or nodes, that are compared in the time of one try."""


class Tries:
    """The work that one call may still spend on the search for GPUs. All nodes of the call share it.

    Attributes:
        left: tries that are left; negative once the search gave up.
    """

    def __init__(self, count: int = CALL_TRIES) -> None:
        self.left = count

    @property
    def gave_up(self) -> bool:
        """Whether a search ended for lack of tries, so that its answer is not certain."""
        return self.left < 0

    def allow(self, count: int) -> None:
        """Have more tries, for one more node that the call is about. A search that gave up does not go on."""
        if not self.gave_up:
            self.left += count

    def spend(self, count: int = 1) -> bool:
        """Take tries; False if so many are not left."""
        self.left -= count
        return self.left >= 0


class Steps:
    """Takes tries for steps that are much smaller than one.

    Args:
        tries: from which they are taken.
    """

    def __init__(self, tries: Tries) -> None:
        self._tries = tries
        self._rest = 0

    def spend(self, count: int) -> bool:
        """Take tries for so many steps; False if there are none left."""
        steps = self._rest + count
        self._rest = steps % STEPS_A_TRY
        return self._tries.spend(steps // STEPS_A_TRY)
