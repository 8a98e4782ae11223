"""Who holds GPU memory without using it: pods and namespaces, those that waste the most first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuagent.domain.fleet.held_use import HeldUse
from gpuagent.domain.pods.pod import PodName

LONG_IDLE_S = 3600


@dataclass(frozen=True, slots=True)
class PodWaste:
    """One pod, over all its containers and GPUs. None for what is not known of one of them.

    Attributes:
        used_bytes: what its containers stayed below for 95 % of their time, added up.
        peak_bytes: the most that each of its containers used at a time, added up: they may not have peaked together.
        idle_s: for how long none of its GPUs has worked for it.
    """

    pod: PodName
    node: str
    held_bytes: int | None
    used_bytes: int | None
    peak_bytes: int | None
    idle_s: int | None

    @property
    def unused_bytes(self) -> int | None:
        """What it could do without."""
        return _difference(self.held_bytes, self.used_bytes)


@dataclass(frozen=True, slots=True)
class KnownSum:
    """A sum over pods of which some amounts may not be known.

    Attributes:
        known: sum of the amounts that are known; None if none is.
        is_complete: whether all amounts are known. If not, `known` is a lower bound.
    """

    known: int | None
    is_complete: bool

    @property
    def is_lower_bound(self) -> bool:
        """Whether the true sum may be larger than the known one."""
        return self.known is not None and not self.is_complete

    def __add__(self, other: "KnownSum") -> "KnownSum":
        """The sum over the pods of both."""
        known = [amount for amount in (self.known, other.known) if amount is not None]
        return KnownSum(sum(known) if known else None, self.is_complete and other.is_complete)


@dataclass(frozen=True, slots=True)
class NamespaceWaste:
    """One namespace: sums of what is known of its pods.

    Attributes:
        pods: how many there are.
        unknown: of how many of them the use is not known. Their memory counts as held only.
        idle: how many have been idle for an hour or longer.
    """

    namespace: str
    pods: int
    unknown: int
    idle: KnownSum
    held_bytes: KnownSum
    used_bytes: KnownSum
    peak_bytes: KnownSum
    unused_bytes: KnownSum

    def __add__(self, other: "NamespaceWaste") -> "NamespaceWaste":
        """The same namespace with its pods on other nodes: a pod is on one node only."""
        return NamespaceWaste(
            namespace=self.namespace,
            pods=self.pods + other.pods,
            unknown=self.unknown + other.unknown,
            idle=self.idle + other.idle,
            held_bytes=self.held_bytes + other.held_bytes,
            used_bytes=self.used_bytes + other.used_bytes,
            peak_bytes=self.peak_bytes + other.peak_bytes,
            unused_bytes=self.unused_bytes + other.unused_bytes,
        )


@dataclass(frozen=True, slots=True)
class Waste:
    """The answer.

    Attributes:
        namespaces: those that waste the most first.
        pods: the same.
        notes: what could not be read.
    """

    namespaces: Sequence[NamespaceWaste]
    pods: Sequence[PodWaste]
    notes: Sequence[str]


def waste(uses_by_node: Mapping[str, Iterable[HeldUse]], notes: Sequence[str], namespace: str = "") -> Waste:
    """The waste of all pods, or of those of one namespace."""
    pods: list[PodWaste] = []
    for node, uses in uses_by_node.items():
        of_pods: dict[PodName, list[HeldUse]] = {}
        for use in uses:
            if namespace in ("", use.pod.namespace):
                of_pods.setdefault(use.pod, []).append(use)
        pods += [_of_pod(pod, node, uses_of_pod) for pod, uses_of_pod in of_pods.items()]
    pods.sort(key=_most_first)
    of_namespaces: dict[str, list[PodWaste]] = {}
    for pod in pods:
        of_namespaces.setdefault(pod.pod.namespace, []).append(pod)
    namespaces = [_of_namespace(name, members) for name, members in of_namespaces.items()]
    namespaces.sort(key=_namespace_most_first)
    return Waste(namespaces, pods, notes)


def _of_pod(pod: PodName, node: str, uses: Sequence[HeldUse]) -> PodWaste:
    idle_s = None
    idle = [use.idle_s for use in uses if use.idle_s is not None]
    # It is idle as a whole only if every part of it is.
    if len(idle) == len(uses):
        idle_s = min(idle)
    return PodWaste(
        pod=pod,
        node=node,
        held_bytes=_sum([use.held_bytes for use in uses]),
        used_bytes=_sum([use.used_bytes for use in uses]),
        peak_bytes=_sum([use.peak_bytes for use in uses]),
        idle_s=idle_s,
    )


def _of_namespace(namespace: str, pods: Sequence[PodWaste]) -> NamespaceWaste:
    return NamespaceWaste(
        namespace=namespace,
        pods=len(pods),
        unknown=sum(pod.unused_bytes is None for pod in pods),
        idle=_known_sum([_idle_long(pod) for pod in pods]),
        held_bytes=_known_sum([pod.held_bytes for pod in pods]),
        used_bytes=_known_sum([pod.used_bytes for pod in pods]),
        peak_bytes=_known_sum([pod.peak_bytes for pod in pods]),
        unused_bytes=_known_sum([pod.unused_bytes for pod in pods]),
    )


def _idle_long(pod: PodWaste) -> int | None:
    """1 for a pod that has been idle for an hour or longer, 0 for another; None if that is not known."""
    return None if pod.idle_s is None else int(pod.idle_s >= LONG_IDLE_S)


def _namespace_most_first(summed: NamespaceWaste) -> tuple[bool, int, str]:
    """The most waste first; those that are not known last."""
    unused_bytes = summed.unused_bytes.known
    return (unused_bytes is None, -(unused_bytes or 0), summed.namespace)


def _most_first(pod: PodWaste) -> tuple[bool, int, int, PodName]:
    """The most waste first, the longest idle first among equals; those that are not known last."""
    unused_bytes = pod.unused_bytes
    return (unused_bytes is None, -(unused_bytes or 0), -(pod.idle_s or 0), pod.pod)


def _known_sum(amounts: Sequence[int | None]) -> KnownSum:
    known = [amount for amount in amounts if amount is not None]
    return KnownSum(sum(known) if known else None, len(known) == len(amounts))


def _sum(amounts: Sequence[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _difference(held: int | None, used: int | None) -> int | None:
    if held is None or used is None:
        return None
    return max(0, held - used)
