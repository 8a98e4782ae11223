"""Units that containers hold from a time when their GPU had another number of units.

The agent started with another `--memory-unit`, or the GPU has another size of memory than it had then.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.node_state.device_lists import FormerUnits
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import parse_id, units_of
from gpuagent.domain.state import State


def former_units(state: State) -> Mapping[str, FormerUnits]:
    """By GPU UUID. This looks at each holding, so it is worked out only when pods, allocations or GPUs change."""
    gpus = state.gpus.by_uuid
    by_key = {gpu.key: gpu for gpu in gpus.values()}
    units_at_answer = _units_at_answer(state)
    pods_by_uuid: dict[str, set[str]] = defaultdict(set)
    kinds_beyond: dict[str, Kind] = {}
    for holding in state.living_holdings:
        owner = holding.owner
        units_then = units_at_answer.get((owner.container, holding.ids))
        for highest, _ in holding.units:
            gpu = by_key.get(highest.gpu_key)
            if gpu is None or not highest.kind.is_memory:
                continue
            units_now = units_of(gpu, highest.kind, state.policy.unit)
            has_changed = units_then is not None and units_now not in units_then
            # Without an amount in the checkpoint, only a unit that the GPU no longer has shows the change.
            is_beyond = highest.n >= units_now
            if is_beyond:
                kinds_beyond[gpu.uuid] = highest.kind
            if is_beyond or has_changed:
                pods_by_uuid[gpu.uuid].add(str(owner.pod))
    former = {}
    for uuid, pods in pods_by_uuid.items():
        kind = kinds_beyond.get(uuid)
        withheld = 0 if kind is None else _withheld(gpus[uuid], kind, state)
        former[uuid] = FormerUnits(tuple(sorted(pods)), withheld)
    return former


def _units_at_answer(state: State) -> dict[tuple[str, frozenset[str]], frozenset[int]]:
    """Container and device ids to the units of the GPUs when the agent answered kubelet, by kubelet's checkpoint."""
    units = {}
    for entry in state.holdings.checkpoint:
        if entry.gpu_units:
            units[entry.container, entry.ids] = entry.gpu_units
    return units


def _withheld(gpu: Gpu, kind: Kind, state: State) -> int:
    """How many units must not be listed, so that free and held ones together are not more than the GPU has.

    Kubelet takes every listed unit that no container holds for free. One that is held and not listed uses memory too.
    """
    units = units_of(gpu, kind, state.policy.unit)
    held = _held_numbers(gpu, kind, state)
    listed = units
    while listed > 0:
        unlisted = sum(number >= listed for number in held)
        if listed + unlisted <= units:
            break
        listed -= 1
    return units - listed


def _held_numbers(gpu: Gpu, kind: Kind, state: State) -> Collection[int]:
    """The numbers of the GPU's units of this kind that containers hold."""
    numbers = set()
    for holding in state.living_holdings:
        for unit in map(parse_id, holding.ids):
            if unit is not None and (unit.gpu_key, unit.kind) == (gpu.key, kind):
                numbers.add(unit.n)
    return numbers
