"""What containers held and used of GPUs over time: sums that grow with each reading.

Nothing here has a clock. A reading is in force from its own time to that of the next one, so the sums are right on
average however short a container lives, and they do not depend on when Prometheus scrapes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuagent.domain.pods.pod import ContainerRef

KEPT_S = 300.0
"""How long the sums of a container are shown after its end, so that the last scrape still gets all of them."""
MOST_ENDED = 500
"""Containers that are shown after their end. The pods of a crash loop end often, each on every GPU that it had."""
MOST_NAMESPACES = 500
"""Namespaces that hold nothing any more and whose sums are kept until the agent ends."""
MOST_GAP_S = 30.0
"""How long a reading of the use counts. What a container used in a longer gap between two readings is not known."""
MOST_RECENT = 3
"""Readings that are kept as they were. A container that exits and starts again has others soon."""
PARTS = 20
"""Used memory is kept by twentieths of what the container holds, and one more for what is above that."""
_NO_SECONDS = (0.0,) * (PARTS + 1)
_QUANTILE = 0.95

OnGpu = tuple[str, ContainerRef]
"""GPU UUID and container."""


@dataclass(frozen=True, slots=True)
class HeldUse:
    """What a container holds of a GPU, and uses of it, at one moment.

    Attributes:
        pod_uid: tells the pod from a later one of the same name; empty if it is not known.
        held_bytes: memory that no other container can get; None if the agent did not allocate the GPU. Of a claim that
            several containers use, each has an equal part, so that the sum is what the claim has.
        used_bytes: memory that its processes use; None if it is not known.
        busy: share of time in which the GPU works for it, 0 to 1; None if it is not known.
        limited: it cannot get more memory than it holds: of an isolated share, or of a whole GPU.
    """

    pod_uid: str
    held_bytes: int | None
    used_bytes: int | None
    busy: float | None
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Sums:
    """What was held and used, added up. None: it was not known in any of the time.

    Attributes:
        allocated_s: seconds for which a part of a GPU was held.
        allocated_byte_s: held memory, integrated.
        used_s: seconds in which a process was on the GPU.
        unused_s: seconds in which certainly none was.
        used_byte_s: used memory, integrated.
        unused_byte_s: held memory that was not used, integrated.
        busy_s: seconds in which the GPU worked: an hour at 50 % is half an hour.
        idle_s: seconds in which the GPU did not work at all.
    """

    allocated_s: float = 0.0
    allocated_byte_s: float = 0.0
    used_s: float | None = None
    unused_s: float | None = None
    used_byte_s: float | None = None
    unused_byte_s: float | None = None
    busy_s: float | None = None
    idle_s: float | None = None

    @classmethod
    def of(cls, reading: HeldUse, seconds: float) -> "Sums":
        """Of a reading that was in force for so long. Of no seconds, zeros for what it knows."""
        held_bytes = reading.held_bytes or 0
        sums = cls(seconds, seconds * held_bytes)
        used_bytes = reading.used_bytes
        if used_bytes is not None:
            sums = replace(
                sums,
                used_s=seconds if used_bytes else 0.0,
                unused_s=0.0 if used_bytes else seconds,
                used_byte_s=seconds * used_bytes,
                unused_byte_s=seconds * max(0, held_bytes - used_bytes),
            )
        busy = reading.busy
        if busy is not None:
            sums = replace(sums, busy_s=seconds * min(1.0, busy), idle_s=0.0 if busy else seconds)
        return sums

    def plus(self, more: "Sums") -> "Sums":
        """Both together."""
        return Sums(
            self.allocated_s + more.allocated_s,
            self.allocated_byte_s + more.allocated_byte_s,
            _together(self.used_s, more.used_s),
            _together(self.unused_s, more.unused_s),
            _together(self.used_byte_s, more.used_byte_s),
            _together(self.unused_byte_s, more.unused_byte_s),
            _together(self.busy_s, more.busy_s),
            _together(self.idle_s, more.idle_s),
        )


def _together(first: float | None, second: float | None) -> float | None:
    """The sum of what is known of two amounts; None if neither is."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


@dataclass(frozen=True, slots=True)
class UsedMemory:
    """The used memory of one pod's container over time.

    Attributes:
        peak_bytes: the highest reading; None before the first that is known.
        recent: the last readings in which it used any: when, and how much.
        seconds_by_part: time by the part of the held memory that it used, in twentieths; the last one is above all. It
            starts again from zero when the held memory changes.
    """

    peak_bytes: int | None = None
    recent: tuple[tuple[float, int], ...] = ()
    seconds_by_part: tuple[float, ...] = _NO_SECONDS

    def seen(self, used_bytes: int, at: float) -> "UsedMemory":
        """After a reading."""
        peak_bytes = max(used_bytes, self.peak_bytes or 0)
        recent = self.recent
        if used_bytes:
            recent = (*recent, (at, used_bytes))[-MOST_RECENT:]
        return replace(self, peak_bytes=peak_bytes, recent=recent)

    def most_since(self, at: float) -> int:
        """The most that it used in its last readings, of those that are not older."""
        return max((used_bytes for then, used_bytes in self.recent if then >= at), default=0)

    def resized(self) -> "UsedMemory":
        """After it began to hold another amount, of which the twentieths so far say nothing."""
        return replace(self, seconds_by_part=_NO_SECONDS)

    def lasted(self, used_bytes: int, held_bytes: int, seconds: float) -> "UsedMemory":
        """After it used that much for so long."""
        # Rounded up: exactly one twentieth is still in the first part.
        part = min(PARTS, max(0, -(-used_bytes * PARTS // held_bytes) - 1))
        seconds_by_part = list(self.seconds_by_part)
        seconds_by_part[part] += seconds
        return replace(self, seconds_by_part=tuple(seconds_by_part))

    def usual_bytes(self, held_bytes: int) -> int | None:
        """What it stayed below for 95 % of the time, to a twentieth of what it holds; None if nothing is known."""
        total = sum(self.seconds_by_part)
        if not total or self.peak_bytes is None:
            return None
        below = 0.0
        for part, seconds in enumerate(self.seconds_by_part[:PARTS]):
            below += seconds
            if below >= total * _QUANTILE:
                edge_bytes = held_bytes * (part + 1) // PARTS
                return min(edge_bytes, self.peak_bytes)
        return self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUsage:
    """What one container has held and used of one GPU since the agent saw it first.

    Sums go on if a later pod has the same name. The other values are those of the last pod.

    Attributes:
        at: time of the last reading, in monotonic seconds.
        reading: the last reading; of a container that has ended, the one before its end.
        ended: when it was found to have ended; None while it holds the GPU.
        sums: what it held and used, up to the last reading.
        idle_since: when the GPU last worked for it, or when the agent began to know that; None if that is not known.
        memory: its used memory.
    """

    at: float
    reading: HeldUse
    ended: float | None = None
    sums: Sums = Sums()
    idle_since: float | None = None
    memory: UsedMemory = UsedMemory()

    @classmethod
    def first(cls, reading: HeldUse, at: float) -> "ContainerUsage":
        """At its first reading."""
        return cls(at=at, reading=reading).read(reading, at)

    def next(self, reading: HeldUse | None, at: float, since_reading: Sums) -> "ContainerUsage":
        """After a further reading.

        Args:
            reading: the new one; None if it no longer holds the GPU.
            at: time of that reading.
            since_reading: what `since_reading` gives for that time.
        """
        if self.ended is not None:
            if reading is None:
                return self
            # In between, it did not hold the GPU as far as it is known. So it was not seen to be idle.
            return replace(self, at=at, ended=None, idle_since=None).read(reading, at)
        counted = self._counted(at, since_reading)
        if reading is None:
            return replace(counted, at=at, ended=at)
        return counted.read(reading, at)

    def since_reading(self, at: float) -> Sums:
        """The time since the last reading, in which that reading was in force; nothing after the end."""
        if self.ended is not None:
            return Sums()
        seconds = self._seconds_since_reading(at)
        reading = self.reading
        if seconds > MOST_GAP_S:
            # Kubelet's allocations say on both ends that it held the GPU, so it did in between, too.
            reading = replace(reading, used_bytes=None, busy=None)
        return Sums.of(reading, seconds)

    def _seconds_since_reading(self, at: float) -> float:
        return max(0.0, at - self.at)

    def _counted(self, at: float, since_reading: Sums) -> "ContainerUsage":
        """With the time since the last reading."""
        counted = replace(self, sums=self.sums.plus(since_reading))
        seconds = self._seconds_since_reading(at)
        if seconds > MOST_GAP_S:
            return replace(counted, idle_since=None)
        used_bytes = self.reading.used_bytes
        held_bytes = self.reading.held_bytes
        if used_bytes is None or not held_bytes:
            return counted
        return replace(counted, memory=self.memory.lasted(used_bytes, held_bytes, seconds))

    def read(self, reading: HeldUse, at: float) -> "ContainerUsage":
        """With a reading that is in force from now on."""
        is_same_pod = reading.pod_uid == self.reading.pod_uid
        memory = self.memory if is_same_pod else UsedMemory()
        idle_since = self.idle_since if is_same_pod else None
        if reading.held_bytes != self.reading.held_bytes:
            memory = memory.resized()
        if reading.used_bytes is not None:
            memory = memory.seen(reading.used_bytes, at)
        if reading.busy is None:
            # The GPU may have worked for it meanwhile. A pod must not be evicted for what is not known.
            idle_since = None
        elif reading.busy or idle_since is None:
            idle_since = at
        # What is known from now on begins at zero, so that a scrape sees it grow.
        sums = self.sums.plus(Sums.of(reading, 0.0))
        return replace(self, at=at, reading=reading, sums=sums, idle_since=idle_since, memory=memory)

    def idle_for(self, at: float) -> float | None:
        """For how long the GPU has not worked for it, in seconds; None if that is not known, or it has ended."""
        if self.ended is not None or self.idle_since is None or at - self.at > MOST_GAP_S:
            return None
        return max(0.0, at - self.idle_since)


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """What all containers of the node have held and used.

    Attributes:
        by_container: of those that hold a GPU, and of the last ones that did.
        by_namespace: sums of all containers that held a GPU since the agent started, by namespace, so that nothing ends
            with a container. The namespace that held one last is last.
        at: time of the last reading, in monotonic seconds.
    """

    by_container: Mapping[OnGpu, ContainerUsage] = field(default_factory=dict)
    by_namespace: Mapping[str, Sums] = field(default_factory=dict)
    at: float = 0.0

    def next(self, readings: Mapping[OnGpu, HeldUse], at: float) -> "NodeUsage":
        """After a reading of every container that holds a GPU now."""
        since_reading = {key: usage.since_reading(at) for key, usage in self.by_container.items()}
        by_container = self._of_containers(readings, at, since_reading)
        by_namespace = self._of_namespaces(readings, since_reading)
        return NodeUsage(by_container, by_namespace, at)

    def _of_containers(
        self, readings: Mapping[OnGpu, HeldUse], at: float, since_reading: Mapping[OnGpu, Sums]
    ) -> dict[OnGpu, ContainerUsage]:
        """What is shown of each container after a reading."""
        usages: dict[OnGpu, ContainerUsage] = {}
        for key, former in self.by_container.items():
            usage = former.next(readings.get(key), at, since_reading[key])
            is_shown = usage.ended is None or at - usage.ended < KEPT_S
            if is_shown:
                usages[key] = usage
        for key, reading in readings.items():
            if key not in usages:
                usages[key] = ContainerUsage.first(reading, at)
        for key in _too_many(usages):
            del usages[key]
        return usages

    def _of_namespaces(self, readings: Mapping[OnGpu, HeldUse], since_reading: Mapping[OnGpu, Sums]) -> dict[str, Sums]:
        """The sums by namespace after a reading."""
        sums = dict(self.by_namespace)

        def add(owner: ContainerRef, more: Sums) -> None:
            # At the end of the dictionary: the namespaces that held a GPU longest ago are dropped first.
            namespace = owner.pod.namespace
            former = sums.pop(namespace, Sums())
            sums[namespace] = former.plus(more)

        for key, usage in self.by_container.items():
            _, owner = key
            if usage.ended is None:
                add(owner, since_reading[key])
        # A namespace that is new begins at zero, and so does what is known from now on.
        for (_, owner), reading in readings.items():
            add(owner, Sums.of(reading, 0.0))
        holders = {owner.pod.namespace for _, owner in readings}
        former_holders = [namespace for namespace in sums if namespace not in holders]
        surplus = max(0, len(former_holders) - MOST_NAMESPACES)
        for namespace in former_holders[:surplus]:
            del sums[namespace]
        return sums


def _too_many(usages: Mapping[OnGpu, ContainerUsage]) -> list[OnGpu]:
    """The containers that ended first, beyond `MOST_ENDED`."""
    ended = [(usage.ended, key) for key, usage in usages.items() if usage.ended is not None]
    ended.sort()
    surplus = max(0, len(ended) - MOST_ENDED)
    return [key for _, key in ended[:surplus]]
