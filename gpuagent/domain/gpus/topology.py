"""The links between the GPUs of a node (NVLink, NVSwitch or PCIe), and their bandwidths."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.link_reports import End, Fabric, Nvlink, Relation, Wiring

NVLINK_GBPS: Mapping[str, float] = {
    "1.0": 20.0,  # P100: 4 links, 160 GB/s both ways together (NVIDIA, Pascal P100 whitepaper)
    "2.0": 25.0,  # V100: 6 links, 300 GB/s (NVIDIA, Volta V100 whitepaper)
    "2.2": 25.0,  # the same signalling
    "3.0": 25.0,  # A100: 12 links, 600 GB/s (NVIDIA, Ampere A100 whitepaper)
    "3.1": 14.0625,  # GA102, as in A40: 4 links, 112.5 GB/s (NVIDIA, Ampere GA102 whitepaper)
    "4.0": 25.0,  # H100: 18 links, 900 GB/s (NVIDIA, Hopper H100 whitepaper)
    "5.0": 50.0,  # B200: 18 links, 1.8 TB/s (NVIDIA, Blackwell architecture brief)
    "6.0": 50.0,  # Rubin: 3.6 TB/s (NVIDIA, Rubin platform), over the 36 links that NVML counts
}
"""NVLink version to GB/s of one link, each way."""

NVSWITCH_PCI_IDS = frozenset({0x1AC210DE, 0x1AF110DE, 0x22A310DE})
"""PCI device and vendor of NVSwitches: DGX-2, HGX A100, HGX H100 (pci.ids). Later ones are no PCI devices."""

_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCIe generation to GB/s of one lane, each way, after encoding (PCI-SIG)."""
_USUAL_PCIE = (3, 16)
"""Assumed for GPUs that do not report theirs."""


_SHARE = {
    Relation.PIX: 1.0,
    Relation.PXB: 0.9,
    Relation.PHB: 0.8,
    Relation.NODE: 0.7,
    Relation.SYS: 0.5,
}
"""Share of a GPU's PCIe bandwidth that it has to another GPU. Three values are NCCL's (src/graph/topo.h: 12, 10 and 6
GB/s): 1 below a switch, 0.8 through an Intel CPU, 0.5 between sockets. The others only keep the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link between two GPUs: `gbps` is GB/s each way, `nvlinks` counts NVLinks, `switched` means by NVSwitch."""

    relation: Relation
    gbps: float
    nvlinks: int = 0
    switched: bool = False

    @property
    def type(self) -> str:
        """``NV2`` for two NVLinks, else the PCIe relation, as ``nvidia-smi topo -m`` shows it."""
        if self.nvlinks:
            return f"NV{self.nvlinks}"
        return str(self.relation)


@dataclass(frozen=True)
class Topology:
    """The links between all pairs of GPUs.

    Attributes:
        gpus: UUIDs, by NVML index.
        links: a square as wide as `gpus`, the same from both sides; None on the diagonal.
        notes: faults and contradictions in the reports, and the agent's assumptions.
    """

    gpus: tuple[str, ...] = ()
    links: tuple[tuple[Link | None, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def mbps(self) -> tuple[tuple[int, ...], ...]:
        """The square of bandwidths in whole MB/s, 0 on the diagonal."""
        return tuple(_mbps_of(row) for row in self.links)


def _mbps_of(row: Sequence[Link | None]) -> tuple[int, ...]:
    speeds = []
    for link in row:
        gbps = link.gbps if link else 0
        speeds.append(round(gbps * 1000))
    return tuple(speeds)


def topology(gpus: Sequence[Gpu], wiring: Mapping[str, Wiring]) -> Topology:
    """Combine the report of each GPU (`wiring`, by UUID). If two reports differ, the worse one counts, with a note."""
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    ends: list[_Ends] = []
    for gpu in ordered:
        reported = wiring.get(gpu.uuid, Wiring())
        ends.append(_Ends.of(gpu, reported))
    notes: list[str] = []
    for end in ends:
        name = f"GPU {end.gpu.index}"
        notes += [f"{name}: {problem}" for problem in end.wiring.problems]
    for end in ends:
        notes += _unknown_versions(end)
    notes += _thin(ends)
    width = len(ends)
    square: list[list[Link | None]] = [[None] * width for _ in ends]
    for row, end in enumerate(ends):
        earlier = ends[:row]
        for column, other in enumerate(earlier):
            link = _link(other, end, notes)
            # It is the same from both sides.
            square[row][column] = link
            square[column][row] = link
    uuids = [gpu.uuid for gpu in ordered]
    return Topology(
        gpus=tuple(uuids),
        links=tuple(map(tuple, square)),
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    """A GPU and the ends of its NVLinks: GB/s of each link, by bus id of the other GPU, and to the switches."""

    gpu: Gpu
    wiring: Wiring
    direct: Mapping[str, tuple[float, ...]]
    switch: tuple[float, ...]

    @classmethod
    def of(cls, gpu: Gpu, wiring: Wiring) -> "_Ends":
        direct: dict[str, tuple[float, ...]] = {}
        switch: tuple[float, ...] = ()
        # Links of a version that is not known count as the slowest kind.
        slowest = min(NVLINK_GBPS.values())
        for link in wiring.nvlinks:
            speed = NVLINK_GBPS.get(link.version, slowest)
            may_be_gpu = link.end in {End.GPU, End.UNKNOWN}
            if _is_switch(link, wiring):
                switch = (*switch, speed)
            elif may_be_gpu and link.remote_bus_id:
                others = direct.get(link.remote_bus_id, ())
                direct[link.remote_bus_id] = (*others, speed)
        return cls(gpu, wiring, direct, switch)

    @property
    def pcie_gbps(self) -> float:
        generation, lanes = self.wiring.pcie or _USUAL_PCIE
        newest_known = max(_LANE_GBPS)
        return lanes * _LANE_GBPS.get(generation, _LANE_GBPS[newest_known])


def _is_switch(link: Nvlink, wiring: Wiring) -> bool:
    """By the kind of device; by its PCI id; or because a GPU of a fabric has links to nowhere."""
    if link.end is not End.UNKNOWN:
        return link.end is End.SWITCH
    if link.remote_pci_id in NVSWITCH_PCI_IDS:
        return True
    is_in_fabric = wiring.fabric is not None
    return is_in_fabric and not link.remote_bus_id


def _link(end: _Ends, other: _Ends, notes: list[str]) -> Link:
    """The link between two GPUs; adds contradictions of their reports to `notes`."""
    names = f"GPU {end.gpu.index} and GPU {other.gpu.index}"
    relation = _relation(end, other, names, notes)
    there = end.direct.get(other.gpu.pci_bus_id, ())
    back = other.direct.get(end.gpu.pci_bus_id, ())
    count_there = len(there)
    count_back = len(back)
    count = min(count_there, count_back)
    if count_there != count_back:
        reports = f"{count_there} and {count_back} NVLinks"
        notes.append(f"{names} report {reports} between them; {count} are counted")
    switched = not count and _same_fabric(end.wiring.fabric, other.wiring.fabric)
    if switched:
        there = end.switch
        back = other.switch
        count = min(len(there), len(back))
    if not count:
        slower_gbps = min(end.pcie_gbps, other.pcie_gbps)
        gbps = slower_gbps * _SHARE[relation]
        return Link(relation=relation, gbps=gbps)
    # Each GPU reports the speeds of its own ends, and the slower end counts.
    gbps_there = _fastest(there, count)
    gbps_back = _fastest(back, count)
    return Link(
        relation=relation,
        gbps=min(gbps_there, gbps_back),
        nvlinks=count,
        switched=switched,
    )


def _fastest(speeds: Sequence[float], count: int) -> float:
    """The sum of the fastest links."""
    fastest_first = sorted(speeds, reverse=True)
    return sum(fastest_first[:count])


def _relation(
    end: _Ends,
    other: _Ends,
    names: str,
    notes: list[str],
) -> Relation:
    """How the two GPUs are joined by PCIe, by the farther of their reports."""
    there = end.wiring.relations.get(other.gpu.pci_bus_id)
    back = other.wiring.relations.get(end.gpu.pci_bus_id)
    reported = {relation for relation in (there, back) if relation}
    if not reported:
        notes.append(f"how {names} are joined by PCIe is not known; {Relation.SYS} is taken")
        return Relation.SYS
    nearest_first = list(Relation)
    farthest = max(reported, key=nearest_first.index)
    if len(reported) > 1:
        words = sorted(map(str, reported))
        notes.append(f"{names} report {' and '.join(words)} between them; {farthest} is taken")
    return farthest


def _same_fabric(fabric: Fabric | None, other: Fabric | None) -> bool:
    if fabric != other:
        return False
    return fabric is None or fabric.ready


def _unknown_versions(end: _Ends) -> Iterator[str]:
    versions = {link.version for link in end.wiring.nvlinks}
    unknown = versions - NVLINK_GBPS.keys()
    for version in sorted(unknown):
        what = f"NVLink version {version!r} is not known"
        yield f"GPU {end.gpu.index}: {what}; its links are taken for the slowest kind"


def _thin(ends: Sequence[_Ends]) -> Iterator[str]:
    """GPUs with links that are down, with fewer switch links than their peers, or with a fabric that is not ready.

    A GPU whose links are all down has no bridge. This is a fault only if its peers show that it should have links.
    """
    most = max((len(end.switch) for end in ends), default=0)
    for end in ends:
        name = f"GPU {end.gpu.index}"
        up = len(end.wiring.nvlinks)
        down = end.wiring.inactive if up else 0
        if down:
            in_all = up + down
            are = "is" if down == 1 else "are"
            yield f"{name}: {down} of its {in_all} NVLinks {are} down"
        switch_links = len(end.switch)
        # Those that are down may be switch links, and are reported already.
        may_have = switch_links + down
        if may_have < most:
            yield f"{name} has {switch_links} NVLinks to the switches, other GPUs have {most}"
        fabric = end.wiring.fabric
        is_ready = fabric is None or fabric.ready
        if switch_links and not is_ready:
            yield (
                f"{name}: its NVLink fabric is not ready, and its links to the switches are not counted; "
                "look at nvidia-fabricmanager"
            )
