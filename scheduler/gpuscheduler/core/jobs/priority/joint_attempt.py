"""All pods of a job nominated at one time, so that kube-scheduler sees that they do not fit together."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

MOST_RENEWALS = 4
"""How often nominations are written again, for each pod of the job."""


@dataclass(frozen=True, slots=True)
class JointAttempt:
    """What has been written, and what the watch has shown of it. Each event makes another value of it.

    Attributes:
        places: UID of each pod to the node that it is nominated for.
        callers: UIDs of the pods for which kube-scheduler is to look for pods to evict.
        until: when the nominations are taken back.
        shown: UIDs of the pods whose nomination the watch shows.
        renewals: how many nominations were written again.
        is_woken: kube-scheduler was woken for the callers.
    """

    places: Mapping[str, str]
    callers: Collection[str]
    until: float
    shown: frozenset[str] = frozenset()
    renewals: int = 0
    is_woken: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether kube-scheduler counts all pods on their nodes, and was not woken since."""
        return not self.is_woken and self.shown == self.places.keys()

    def seen(self, nominated: Mapping[str, str]) -> "JointAttempt":
        """The watch shows by UID for which nodes the pods are nominated now."""
        shown = frozenset(uid for uid, node in self.places.items() if nominated.get(uid) == node)
        return replace(self, shown=shown)

    def renewed(self, uids: Collection[str]) -> "JointAttempt":
        """These pods are nominated again, and kube-scheduler is woken again when all of them are."""
        return replace(self, renewals=self.renewals + len(uids), is_woken=False)

    def woken(self) -> "JointAttempt":
        """kube-scheduler is woken for the callers."""
        return replace(self, is_woken=True)

    @property
    def may_renew(self) -> bool:
        """Whether nominations may be written again."""
        return self.renewals < MOST_RENEWALS * len(self.places)
