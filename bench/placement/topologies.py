"""Topologies to measure on: those of boxes, as the agent reads them, and squares that are hard to choose from."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpuagent.domain.gpus.topology import Topology, topology
from gpuagent.nvml.gpu_reader import discover
from gpuagent.simulation import boxes
from gpuagent.simulation.simulator import install

Square = tuple[tuple[int, ...], ...]

_FOUR_BRIDGES = """
[[gpus]]
model = "NVIDIA A40"
memory_mib = 46068
compute_capability = "8.6"
pci_bus_ids = [
    "00000000:0E:00.0", "00000000:0F:00.0", "00000000:1F:00.0", "00000000:20:00.0",
    "00000000:8E:00.0", "00000000:8F:00.0", "00000000:9F:00.0", "00000000:A0:00.0",
]
numa_nodes = [0, 0, 0, 0, 1, 1, 1, 1]
pcie = "4x16"
pcie_paths = ["0/0", "0/1", "0/2", "0/3", "1/0", "1/1", "1/2", "1/3"]

[[nvlinks]]
version = "3.1"
pairs = [[0, 1, 4], [2, 3, 4], [4, 5, 4], [6, 7, 4]]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wired:
    """A box to measure on: a known one, or one described in `toml`; `down` are NVLinks (GPU, link) that are down."""

    box: str = ""
    toml: str = ""
    down: tuple[tuple[int, int], ...] = ()


BOXES: Mapping[str, Wired] = {
    "DGX-1 Pascal": Wired(box="dgx1-p100"),
    "DGX-1 Volta": Wired(box="dgx1-v100"),
    "DGX-2": Wired(box="dgx2"),
    "DGX A100": Wired(box="dgx-a100"),
    "HGX H100": Wired(box="hgx-h100"),
    "DGX A100, GPU 3 with 10 of 12 links": Wired(box="dgx-a100", down=((3, 10), (3, 11))),
    "4 x A40, two bridges": Wired(box="pcie-4x-a40-nvlink"),
    "8 x A40, four bridges": Wired(toml=_FOUR_BRIDGES),
    "8 x L40S, no NVLink": Wired(box="pcie-8x-l40s"),
    "2 x T4, 2 x A10, A100, no NVLink": Wired(box="mixed"),
}


def box_topology(name: str) -> Topology:
    """The topology that the agent derives from one of `BOXES`, read through the simulated NVML."""
    wired = BOXES[name]
    box = boxes.load(wired.box) if wired.box else boxes.parse(name, wired.toml)
    with install(box) as simulator:
        for gpu, link in wired.down:
            simulator.apply({"fault": "nvlink", "gpu": gpu, "link": link, "up": False})
        inventory = discover()
    return topology(inventory.gpus, inventory.wiring)


def square(gpus: int, speed: Callable[[int, int], int]) -> Square:
    """The bandwidths between GPU `i` and GPU `j` > `i` as a square."""
    return tuple(tuple(speed(min(i, j), max(i, j)) if i != j else 0 for j in range(gpus)) for i in range(gpus))


def random_square(gpus: int, rng: random.Random, values: Sequence[int]) -> Square:
    speeds = {pair: rng.choice(values) for pair in combinations(range(gpus), 2)}
    return square(gpus, lambda i, j: speeds[i, j])


def _ring_distance(i: int, j: int) -> int:
    return min(j - i, 16 - (j - i))


def sixteens() -> dict[str, Square]:
    """16 GPUs in many ways. The last four have few bandwidths and many ties, though all GPUs differ."""
    rng = random.Random(16)  # noqa: S311 (the same every time is the point)
    return {
        "all alike (DGX-2)": square(16, lambda _i, _j: 150_000),
        "PCIe, four to a switch": square(
            16, lambda i, j: 15_752 if i // 4 == j // 4 else 11_026 if i // 8 == j // 8 else 7_876
        ),
        "eight bridged pairs": square(
            16, lambda i, j: 56_250 if i // 2 == j // 2 else 22_053 if i // 8 == j // 8 else 15_752
        ),
        "all different": random_square(16, rng, range(1_000, 150_000)),
        "a cycle": square(16, lambda i, j: 50_000 if _ring_distance(i, j) == 1 else 10_000),
        "all but a cycle": square(16, lambda i, j: 10_000 if _ring_distance(i, j) == 1 else 50_000),
        "a hypercube": square(16, lambda i, j: 50_000 if (i ^ j).bit_count() == 1 else 10_000),
        "four chains": square(16, lambda i, j: 50_000 if j - i == 1 and i // 4 == j // 4 else 10_000),
    }
