"""Values of containers and namespaces that were added up since the agent started."""

from collections.abc import Callable, Mapping
from operator import attrgetter

from gpuagent.domain.usage.over_time import ContainerUsage, Sums
from gpuagent.metrics import families as f
from gpuagent.metrics.containers import by_labels
from gpuagent.metrics.family import Family
from gpuagent.metrics.reading import Labels, MetricValues, Reading, known_values

SumsOfFamilies = Mapping[Family, Callable[[Sums], float | None]]
"""The sum that each family shows; None if it is not known."""

_OF_CONTAINERS: SumsOfFamilies = {
    f.ALLOCATED_SECONDS: attrgetter("allocated_s"),
    f.USED_SECONDS: attrgetter("used_s"),
    f.UNUSED_SECONDS: attrgetter("unused_s"),
    f.BUSY_SECONDS: attrgetter("busy_s"),
    f.IDLE_SECONDS: attrgetter("idle_s"),
    f.ALLOCATED_BYTE_SECONDS: attrgetter("allocated_byte_s"),
    f.USED_BYTE_SECONDS: attrgetter("used_byte_s"),
    f.UNUSED_BYTE_SECONDS: attrgetter("unused_byte_s"),
}
_OF_NAMESPACES: SumsOfFamilies = {
    f.NAMESPACE_ALLOCATED_SECONDS: attrgetter("allocated_s"),
    f.NAMESPACE_USED_SECONDS: attrgetter("used_s"),
    f.NAMESPACE_UNUSED_SECONDS: attrgetter("unused_s"),
    f.NAMESPACE_BUSY_SECONDS: attrgetter("busy_s"),
    f.NAMESPACE_IDLE_SECONDS: attrgetter("idle_s"),
    f.NAMESPACE_ALLOCATED_BYTE_SECONDS: attrgetter("allocated_byte_s"),
    f.NAMESPACE_USED_BYTE_SECONDS: attrgetter("used_byte_s"),
    f.NAMESPACE_UNUSED_BYTE_SECONDS: attrgetter("unused_byte_s"),
}


def over_time(reading: Reading) -> MetricValues:
    """The sums of each container, also of one that has ended lately, and those of each namespace, which go on."""
    usages = by_labels(reading, reading.usage.by_container)
    sums_by_labels: dict[Labels, Sums] = {named: usage.sums for named, usage in usages.items()}
    yield from _sums(_OF_CONTAINERS, sums_by_labels)
    living = {named: usage for named, usage in usages.items() if usage.ended is None}

    def idle_for(usage: ContainerUsage) -> float | None:
        return usage.idle_for(reading.at)

    yield f.PEAK_USED, known_values(living, attrgetter("memory.peak_bytes"))
    yield f.IDLE_FOR, known_values(living, idle_for)
    # Until a container's pod is seen, its namespace is not known.
    by_namespace: dict[Labels, Sums] = {(name,): sums for name, sums in reading.usage.by_namespace.items() if name}
    yield from _sums(_OF_NAMESPACES, by_namespace)


def _sums(families: SumsOfFamilies, sums_by_labels: Mapping[Labels, Sums]) -> MetricValues:
    for family, value in families.items():
        yield family, known_values(sums_by_labels, value)
