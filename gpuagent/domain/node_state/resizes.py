"""Containers whose memory limit is not what they requested: what was granted, and the units that this takes.

A resized pod keeps its units in kubelet's allocations. If it may use more than those, as many further units of the same
GPU are withheld from everybody else: they leave the device list, and Allocate refuses them. These are its extra units.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.resize import Resize
from gpuagent.domain.sharing.units import parse_id
from gpuagent.system.printable import printable

_MOST_TEXT = 1000
"""Characters of the annotation with a verdict."""
ByPod = Mapping[str, Resize]
"""UID of a pod to its resize."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A larger limit whose units are on their way out of the device lists.

    First the units are shown as unhealthy, and an Allocate that takes one of them wins. When kubelet has had time to
    hear of that, they are closed: from then on Allocate refuses them. The limit may rise once no call is in progress
    that began before.

    Attributes:
        resize: what the pod will have.
        ids: the units that leave the lists for it.
        since: when they were first shown as unhealthy, in monotonic seconds.
        closed_at: when they were closed; None if they are not.
    """

    resize: Resize
    ids: frozenset[str]
    since: float
    closed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the request of one pod.

    Attributes:
        pod: its name.
        word: `InForce`, or `Refused` while another limit than the requested one is in force.
        text: the limits in force, or why they are not what was requested.
        request: the annotation that was judged; empty if there is none any more.
        cause: distinguishes refusals whose texts differ only in amounts that change all the time.
    """

    pod: PodName
    word: Literal["InForce", "Refused"]
    text: str
    request: str = ""
    cause: str = ""

    @property
    def annotation(self) -> str:
        """The verdict as the pod's annotation has it."""
        text = printable(f"{self.word}: {self.text}")
        # The agent reads no longer or other text back, and would write it again and again.
        return text.encode("ascii", "replace").decode("ascii")[:_MOST_TEXT]


@dataclass(frozen=True, kw_only=True)
class Resizes:
    """All resizes of the node, by the UID of the pod.

    Attributes:
        stored: what the state directory has. Only this is in force, so a restart of the agent changes nothing.
        to_store: what it should have.
        growing: larger limits in preparation.
        verdicts: what became of the requests.
        unsaved: why `to_store` could not be stored.
    """

    stored: ByPod = field(default_factory=dict)
    to_store: ByPod = field(default_factory=dict)
    growing: Mapping[str, Growth] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    unsaved: str | None = None

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.ResizesStored():
                return replace(self, stored=event.stored, unsaved=event.problem)
        return self

    @cached_property
    def closed(self) -> frozenset[str]:
        """Ids that no container may get, whatever kubelet believes."""
        resizes = [*self.stored.values(), *self.to_store.values()]
        closed = [resize.extra for resize in resizes]
        closed += [growth.ids for growth in self.growing.values() if growth.closed_at is not None]
        return frozenset[str]().union(*closed)

    @cached_property
    def withheld(self) -> frozenset[str]:
        """Ids that are not offered to containers."""
        leaving = [growth.ids for growth in self.growing.values()]
        return self.closed.union(*leaving)

    @cached_property
    def withheld_numbers(self) -> Mapping[tuple[str, Kind], frozenset[int]]:
        """Key of a GPU and kind to the numbers of its units that are not offered."""
        numbers: dict[tuple[str, Kind], set[int]] = {}
        for unit in map(parse_id, self.withheld):
            if unit is not None:
                of_gpu = numbers.setdefault((unit.gpu_key, unit.kind), set())
                of_gpu.add(unit.n)
        return {key: frozenset(of_gpu) for key, of_gpu in numbers.items()}

    def withheld_below(self, gpu_key: str, kind: Kind, count: int) -> frozenset[int]:
        """The numbers of a GPU's first `count` units that are not offered."""
        numbers = self.withheld_numbers.get((gpu_key, kind), frozenset())
        return frozenset([number for number in numbers if number < count])

    def owner_of(self, device_id: str) -> PodName | None:
        """The pod for which a unit is withheld."""
        resizes = [*self.stored.values(), *self.to_store.values()]
        resizes += [growth.resize for growth in self.growing.values()]
        for resize in resizes:
            if device_id in resize.extra:
                return resize.pod
        return None


def limits_in_force(resizes: Resizes) -> Mapping[str, Mapping[str, int]]:
    """UID of each resized pod to its containers' limits in units.

    A limit rises only when that is stored. It falls at once: no other pod waits for a disk.
    """
    in_force = {}
    for uid, resize in resizes.stored.items():
        newer = resizes.to_store.get(uid)
        if newer is resize or newer == resize:
            in_force[uid] = resize.limits
        elif newer is not None:
            both = resize.limits.keys() & newer.limits.keys()
            in_force[uid] = {name: min(resize.limits[name], newer.limits[name]) for name in both}
    return in_force
