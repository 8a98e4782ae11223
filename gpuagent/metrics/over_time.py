"""Values of each container on each of its GPUs that were added up since the agent started."""

from operator import attrgetter

from gpuagent.domain.usage.over_time import ContainerUsage
from gpuagent.metrics import families as f
from gpuagent.metrics.containers import by_labels
from gpuagent.metrics.reading import MetricValues, Reading, known_values

_SUMS = {
    f.ALLOCATED_SECONDS: attrgetter("allocated_s"),
    f.USED_SECONDS: attrgetter("used_s"),
    f.BUSY_SECONDS: attrgetter("busy_s"),
    f.IDLE_SECONDS: attrgetter("idle_s"),
    f.ALLOCATED_BYTE_SECONDS: attrgetter("allocated_byte_s"),
    f.USED_BYTE_SECONDS: attrgetter("used_byte_s"),
    f.UNUSED_BYTE_SECONDS: attrgetter("unused_byte_s"),
}


def over_time(reading: Reading) -> MetricValues:
    """The sums of each container, also of one that has ended lately: its last seconds count as well."""
    usages = by_labels(reading, reading.usage.by_container)
    for family, value in _SUMS.items():
        yield family, known_values(usages, value)
    living = {named: usage for named, usage in usages.items() if usage.ended is None}

    def idle_for(usage: ContainerUsage) -> float | None:
        return usage.idle_for(reading.at)

    yield f.PEAK_USED, known_values(living, attrgetter("memory.peak_bytes"))
    yield f.IDLE_FOR, known_values(living, idle_for)
