"""Which pods of a job kube-scheduler has come to.

kube-scheduler asks about a pod only when a node passes all of its own checks. A pod that it has not come to may never
start, for example because of a volume or a selector. So nothing is reserved for its job before.
"""

from collections.abc import Collection, Iterable

MOST_EARLY = 1000
"""Pods of a job that kube-scheduler may ask about before the watch shows them."""


class Turns:
    """The pods of one job that wait, by UID.

    Attributes:
        unasked: kube-scheduler has not come to them yet, or not again since they failed to come into bind.
        uncalled: those of them for which it was not woken either.
    """

    def __init__(self) -> None:
        self.unasked: set[str] = set()
        self.uncalled: set[str] = set()
        self._early: dict[str, None] = {}

    def came(self, uid: str) -> None:
        """Take that a pod waits from now on."""
        if uid in self._early:
            del self._early[uid]
            return
        self.unasked.add(uid)
        self.uncalled.add(uid)

    def asked(self, uids: Collection[str]) -> None:
        """Take that kube-scheduler asks about pods that wait."""
        self.unasked.difference_update(uids)
        self.uncalled.difference_update(uids)

    def asked_early(self, uid: str) -> None:
        """Take that kube-scheduler has asked about a pod that the watch has not shown yet, and may never show."""
        self._early[uid] = None
        if len(self._early) > MOST_EARLY:
            first = next(iter(self._early))
            del self._early[first]

    def call_again(self) -> None:
        """Take that what was woken before may not have been heard: another scheduler led until now."""
        self.uncalled = set(self.unasked)

    def called(self, uids: Iterable[str]) -> None:
        """Take that kube-scheduler was woken for these pods."""
        self.uncalled.difference_update(uids)

    def failed_to_come(self, uids: Iterable[str]) -> None:
        """Take that these pods have not come into bind, and that kube-scheduler was woken for them."""
        self.unasked.update(uids)

    def forget(self, uid: str) -> None:
        """Take that a pod does not wait any more."""
        self.asked([uid])
        self._early.pop(uid, None)
