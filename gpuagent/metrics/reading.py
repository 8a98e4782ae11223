"""The data of one metrics page: one consistent reading of all sources, and the values derived from it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.state import State
from gpuagent.domain.status.problems import Problem, Switch, problems, switch
from gpuagent.domain.usage.by_container import Samples, Use, use
from gpuagent.domain.usage.free_memory import free_memory
from gpuagent.domain.usage.guarantee import Share, shares
from gpuagent.domain.usage.over_time import NodeUsage
from gpuagent.metrics.family import Family

Item = TypeVar("Item")
Labels = tuple[str, ...]
Values = Mapping[Labels, float]
MetricValues = Iterator[tuple[Family, Values]]


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One resource's registration, as metrics and status show it."""

    stage: str
    registered: bool
    registrations: int
    list_bytes: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of a page. Each is called once for a page, from the thread that requests the page.

    Attributes:
        state: the agent's state.
        endpoints: registrations by resource.
        health_watch_up: whether an XID would be received.
        samples: the usage of these GPUs; may wait a moment for the driver.
        usage: what containers have held and used.
        clock: monotonic seconds, of `usage`.
        api: whether there is an API server.
        node_name: for the metrics that arena reads; None: the page leaves them out.
    """

    state: Callable[[], State]
    endpoints: Callable[[], Mapping[str, EndpointView]] = dict
    health_watch_up: Callable[[], bool] = lambda: False
    samples: Callable[[Iterable[Gpu]], Samples] = lambda _: Samples()
    usage: Callable[[], NodeUsage] = NodeUsage
    clock: Callable[[], float] = time.monotonic
    api: bool = False
    node_name: str | None = None


@dataclass(frozen=True)
class Derived:
    """Values derived from the state alone, which on a quiet node stays the same for many pages."""

    state: State

    @cached_property
    def switch(self) -> Switch:
        return switch(self.state)

    @cached_property
    def problems(self) -> Sequence[Problem]:
        return problems(self.state)

    @cached_property
    def shares(self) -> Mapping[tuple[str, ContainerRef], Share]:
        return shares(self.state)

    @cached_property
    def holders(self) -> Mapping[str, Mapping[ContainerRef, Share]]:
        """The shares by GPU, with an entry for every GPU."""
        holders: dict[str, dict[ContainerRef, Share]] = {uuid: {} for uuid in self.state.gpus.by_uuid}
        for (uuid, owner), share in self.shares.items():
            holders[uuid][owner] = share
        return holders

    @cached_property
    def free_memory(self) -> Mapping[str, int | None]:
        """Bytes by GPU; None if they are not known."""
        return free_memory(self.state)


@dataclass(frozen=True)
class Reading:
    """One reading of all sources.

    Attributes:
        unix_times: moments of the monotonic clock to Unix time, the same in every reading, even if the clock is set.
        resolved: an earlier reading found a process in a container.
        usage: what containers have held and used.
        at: when this is read, in monotonic seconds.
    """

    derived: Derived
    endpoints: Mapping[str, EndpointView]
    health_watch_up: bool
    samples: Samples
    api: bool
    node_name: str
    unix_times: Mapping[float, float]
    resolved: bool
    usage: NodeUsage
    at: float

    @property
    def state(self) -> State:
        return self.derived.state

    @cached_property
    def use(self) -> Use:
        return use(self.samples, self.state, self.derived.shares, resolved=self.resolved)


def read_sources(sources: Sources, former: Reading | None) -> Reading:
    """Read all sources now. Values that the former reading derived from the same state are reused."""
    state = sources.state()
    derived = Derived(state)
    known_times: Mapping[float, float] = {}
    if former is not None:
        known_times = former.unix_times
        # Then nothing is derived again: problems, the switch, shares.
        if _shows_the_same(former.state, state):
            derived = former.derived
    return Reading(
        derived=derived,
        endpoints=sources.endpoints(),
        health_watch_up=sources.health_watch_up(),
        samples=sources.samples(state.gpus.by_uuid.values()),
        api=sources.api,
        node_name=sources.node_name or "",
        unix_times=_unix_times(state, known_times),
        resolved=former is not None and former.use.pids_seen,
        usage=sources.usage(),
        at=sources.clock(),
    )


def _unix_times(state: State, before: Mapping[float, float]) -> dict[float, float]:
    """The moments of the GPUs' last XIDs in Unix time. A moment keeps the time that it had before."""
    began_s = time.time() - time.monotonic()
    times = {}
    for health in state.health.by_uuid.values():
        if health.last_xid is None:
            continue
        _, at = health.last_xid
        times[at] = before.get(at, round(began_s + at, 1))
    return times


def _shows_the_same(former: State, state: State) -> bool:
    """Whether nothing has changed that metrics show. The beat of the loop makes a new state with the old parts."""
    return replace(former, allocates=state.allocates) == state


def labels(gpu: Gpu) -> tuple[str, str]:
    """Values of `families.GPU`: the UUID as NVML and dcgm-exporter spell it, and N of /dev/nvidiaN."""
    return gpu.uuid, str(gpu.minor)


def known(values: Mapping[Labels, float | None]) -> Values:
    """Leave out values that are not known, instead of 0."""
    return {named: value for named, value in values.items() if value is not None}


def known_values(items: Mapping[Labels, Item], value: Callable[[Item], float | None]) -> Values:
    """A value of each item, without those that are not known.

    Args:
        items: by the labels of their series.
        value: of one item; None if it is not known.
    """
    values: dict[Labels, float] = {}
    for named, item in items.items():
        of_item = value(item)
        if of_item is not None:
            values[named] = of_item
    return values
