"""Nodes whose GPUs are linked in pairs, and what claims for linked GPUs have to get there."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from gpuagent.domain.gpus.link_reports import End
from gpuagent.simulation.box_links import BoxLink
from gpuagent.simulation.boxes import Box, BoxGpu
from standin.api.objects import Json
from standin.boxes import equal_gpus

NVLINKS = 4
"""Between the GPUs of a pair."""
LINK_VERSION = 6
"""NVLink 3.0 as NVML counts it."""

Uuids = frozenset[str]


def linked_box(name: str, gpus: int, gib: int) -> Box:
    """A box of equal GPUs, of which 0 and 1 are linked, 2 and 3, and so on."""
    box = equal_gpus(name, gpus, gib)
    linked = []
    for gpu, peer in pairs(box.gpus):
        linked.append(_linked_to(gpu, peer))
        linked.append(_linked_to(peer, gpu))
    return replace(box, gpus=tuple(linked))


def pairs(gpus: Collection[BoxGpu]) -> Iterator[tuple[BoxGpu, BoxGpu]]:
    """The pairs of a box, in the order of its GPUs."""
    in_order = iter(gpus)
    return zip(in_order, in_order, strict=True)


def _linked_to(gpu: BoxGpu, peer: BoxGpu) -> BoxGpu:
    link = BoxLink(version=LINK_VERSION, end=End.GPU, bus_id=peer.pci_bus_id)
    return replace(gpu, links=(link,) * NVLINKS)


def are_linked(uuids: Collection[str], box: Box) -> bool:
    """Whether all of these GPUs are one, or are of one pair."""
    return any(set(uuids) <= pair for pair in _uuids_of_pairs(box))


def is_set(device: Json) -> bool:
    """Whether a device of a slice is a set of GPUs."""
    return bool(device["attributes"]["type"]["string"] == "gpu-set")


def gpus_of(device: Json, box: Box) -> tuple[str, ...]:
    """UUIDs of the GPUs of a device of a slice: of one, or of a set."""
    attributes = device["attributes"]
    if not is_set(device):
        return (attributes["uuid"]["string"],)
    minors = attributes["minors"]["string"].split(",")
    return tuple(gpu.uuid for gpu in box.gpus if str(gpu.minor) in minors)


def wrong_sets(published: Iterable[Json], claimed: Collection[Uuids], box: Box) -> Iterator[str]:
    """What is wrong with the sets that a node publishes, in words.

    Args:
        published: all devices of the node.
        claimed: the GPUs of each set that a claim has: it is published as long as the claim has it.
        box: the node's GPUs.
    """
    singles: set[str] = set()
    sets: set[Uuids] = set()
    for device in published:
        uuids = frozenset(gpus_of(device, box))
        size = device["attributes"]["gpus"]["int"]
        if len(uuids) != size:
            yield f"{device['name']} is said to have {size} GPUs and has {len(uuids)}"
        if is_set(device):
            sets.add(uuids)
        else:
            singles |= uuids
    expected = {pair for pair in _uuids_of_pairs(box) if pair <= singles}
    if len(singles) == len(box.gpus):
        expected.add(frozenset(singles))
    missing = expected - sets
    if missing:
        yield f"sets {_texts(missing)} are not published"
    # Of GPUs that are all of the usable ones, and of which no two are linked, the set is worth having too.
    surplus = sets - expected - {*claimed, frozenset(singles)}
    if surplus:
        yield f"sets {_texts(surplus)} are published, and are neither linked nor all GPUs"


def _uuids_of_pairs(box: Box) -> set[Uuids]:
    return {frozenset({gpu.uuid, peer.uuid}) for gpu, peer in pairs(box.gpus)}


def _texts(sets: Iterable[Uuids]) -> list[list[str]]:
    return sorted(sorted(uuids) for uuids in sets)
