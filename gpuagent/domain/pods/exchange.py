"""Kubelets that do not ask which ids to take: an id is a count, exchanged for a unit that the agent chose.

Kubelet 1.18 asks no plugin which units a container gets. The agent writes the exchanged units into its answer, and
kubelet stores the answer in its checkpoint. So kubelet's allocations stay the only record, and survive a restart of the
agent.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding
from gpuagent.domain.sharing.units import parse_id

FIRST_THAT_ASKS = 19
"""Kubelet 1.19 was the first with GetPreferredAllocation."""

Exchanged = Mapping[str, str]
"""Id that kubelet picked to the unit in its place."""

_KUBELET = re.compile(r"v?1\.([0-9]{1,3})(?![0-9])", re.ASCII)
_RUN = re.compile(r"([0-9a-z]+-[a-z]{2}):([0-9]+)(?:-([0-9]+))?", re.ASCII)


def key(resource: str) -> str:
    """Annotation of the answer. Kubelet passes one annotation of each name to the runtime for all resources."""
    return f"gpuagent/units.{resource.rpartition('/')[2]}"


@lru_cache(maxsize=8)
def picks_itself(kubelet: str, *, asked: bool) -> bool:
    """Whether a kubelet of that version takes units without asking which ones.

    An unknown version counts as one that asks, and the agent refuses its calls if it does not. `asked`: this kubelet
    has asked before; some builds of version 1.19 never do.
    """
    minor = minor_of(kubelet)
    if minor is None:
        return False
    if minor == FIRST_THAT_ASKS:
        return not asked
    return minor < FIRST_THAT_ASKS


def minor_of(kubelet: str) -> int | None:
    """36 for ``v1.36.3``; None for other texts than a version of kubelet 1."""
    match = _KUBELET.match(kubelet)
    return None if match is None else int(match[1])


def joined(older: Exchanged, newer: Exchanged) -> Exchanged:
    """Both combined. `newer` replaces older entries with the same id or the same unit."""
    units = set(newer.values())
    others = {device_id: unit for device_id, unit in older.items() if unit not in units}
    return others | dict(newer)


def by_units(
    holdings: tuple[Holding, ...],
    checkpoint: tuple[CheckpointEntry, ...],
) -> tuple[tuple[Holding, ...], tuple[CheckpointEntry, ...], Exchanged]:
    """Kubelet's allocations with units in place of exchanged ids, and the exchanged ids."""
    exchanged: dict[str, str] = {}
    for entry in checkpoint:
        exchanged.update(entry.exchanged)
    if not exchanged:
        return holdings, checkpoint, exchanged

    def units(ids: frozenset[str]) -> frozenset[str]:
        return frozenset(exchanged.get(device_id, device_id) for device_id in ids)

    listed = []
    for holding in holdings:
        ids = units(holding.ids)
        listed.append(replace(holding, ids=ids))
    recorded = []
    for entry in checkpoint:
        ids = units(entry.ids)
        recorded.append(replace(entry, ids=ids))
    return tuple(listed), tuple(recorded), exchanged


def unrecorded(
    holdings: Iterable[Holding],
    checkpoint: Iterable[CheckpointEntry],
) -> ContainerRef | None:
    """A container with ids of this agent that are not in the checkpoint, which is older or was not read."""
    recorded: set[str] = set()
    for entry in checkpoint:
        recorded |= entry.ids
    for holding in holdings:
        has_unit = any(map(parse_id, holding.ids))
        if has_unit and not holding.ids <= recorded:
            return holding.owner
    return None


def written(exchanged: Exchanged) -> str:
    """The units in the order of the ids: ``hbw464wgz6-mc:0-7,hbw464wgz6-mc:9``."""
    units = [exchanged[device_id] for device_id in sorted(exchanged)]
    return ",".join(_runs(units))


def _runs(units: Iterable[str]) -> Iterator[str]:
    """The units, with those of one GPU whose numbers follow each other as one text."""
    gpu = ""
    numbers: list[int] = []
    for unit in units:
        gpu_of_unit, _, text = unit.rpartition("-")
        number = int(text)
        is_next = bool(numbers) and number == numbers[-1] + 1
        continues = is_next and gpu_of_unit == gpu
        if numbers and not continues:
            yield _run(gpu, numbers)
            numbers = []
        gpu = gpu_of_unit
        numbers.append(number)
    if numbers:
        yield _run(gpu, numbers)


def _run(gpu: str, numbers: Sequence[int]) -> str:
    first = numbers[0]
    last = numbers[-1]
    if first == last:
        return f"{gpu}:{first}"
    return f"{gpu}:{first}-{last}"


def read(text: str, picked: Collection[str]) -> dict[str, str]:
    """Read the text of `written` for the ids in `picked`.

    Raises:
        ValueError: the text is invalid, or not for these ids.
    """
    units: list[str] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match is None:
            msg = f"{part!r} is no run of units"
            raise ValueError(msg)
        gpu = match[1]
        first = int(match[2])
        last = int(match[3] or first)
        # The text may name any number. One unit too many is enough to see that it is not for these ids.
        last = min(last, first + len(picked))
        numbers = range(first, last + 1)
        units += [f"{gpu}-{number}" for number in numbers]
    ids = sorted(picked)
    return dict(zip(ids, units, strict=True))
