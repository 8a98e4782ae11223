"""The units that schedulers place: those of the mode in force, by GPU and by resource."""

from collections import defaultdict
from collections.abc import Mapping

from gpuagent.domain.certain_holdings import RESOURCES
from gpuagent.domain.node_state.device_lists import DeviceRange
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.state import State

Blocks = Mapping[str, DeviceRange]
"""Resource to the units of one GPU on its device list."""


def placed_kinds(state: State) -> Mapping[str, Kind]:
    """The resources that the mode advertises and that schedulers place, with the kind of their units."""
    return {name: kind for name, kind in state.resource_kinds.items() if name in RESOURCES}


def placed_units(state: State) -> Mapping[str, Blocks]:
    """The units of `placed_kinds` on the device lists, by the UUID of the GPU; without a GPU that is on no list."""
    by_uuid: defaultdict[str, dict[str, DeviceRange]] = defaultdict(dict)
    for name, kind in placed_kinds(state).items():
        for block in state.advertised.lists.get(name, ()):
            # Units of a former mode may still be about to leave the list.
            if block.kind is kind:
                by_uuid[block.gpu.uuid][name] = block
    return dict(by_uuid)
