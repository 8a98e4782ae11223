"""Pages of `/topology` for boxes that people know."""

from collections.abc import Callable
from typing import Any

Join = Callable[[int, int], dict[str, Any]]

DGX1_TWICE = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
DGX1_ONCE = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}


def link(kind: str, gbps: float, switched: bool = False) -> dict[str, Any]:
    return {"type": kind, "gbps": gbps, "switched": switched}


def gpu(index: int, model: str = "Tesla V100-SXM2-16GB", numa: int | None = 0, **changes: Any) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index:08x}",
        "model": model,
        "pci_bus_id": f"00000000:{index + 6:02X}:00.0",
        "numa_node": numa,
        "health": "Healthy",
        "holders": [],
        **changes,
    }


def page(gpus: list[dict[str, Any]], join: Join, **changes: Any) -> dict[str, Any]:
    """`join` says what joins two GPUs by their places, the lower first."""
    places = range(len(gpus))
    links = [[None if i == j else join(min(i, j), max(i, j)) for j in places] for i in places]
    values = {"version": "0.3.0", "node": "n1", "best": [], "notes": []}
    return {**values, "gpus": gpus, "links": links, **changes}


def hybrid_cube_mesh(i: int, j: int) -> dict[str, Any]:
    if (i, j) in DGX1_TWICE:
        return link("NV2", 50.0)
    return link("NV1", 25.0) if (i, j) in DGX1_ONCE else link("SYS", 7.88)


def dgx1(**changes: Any) -> dict[str, Any]:
    gpus = [gpu(i, numa=i // 4) for i in range(8)]
    gpus[1]["holders"] = ["default/job-0[main]"]
    gpus[2]["holders"] = ["ml/train-0[main]", "ml/watch[main]"]
    gpus[6]["health"] = "Unhealthy"
    return page(gpus, hybrid_cube_mesh, **changes)


def switched(count: int = 8, **changes: Any) -> dict[str, Any]:
    gpus = [gpu(i, "NVIDIA H100 80GB HBM3", i * 2 // count) for i in range(count)]
    return page(gpus, lambda *_: link("NV18", 450.0, switched=True), **changes)


def thin_link() -> dict[str, Any]:
    """GPU 3 of four has lost a link to the switches, and GPU 2 all of them."""

    def join(i: int, j: int) -> dict[str, Any]:
        if 2 in (i, j):
            return link("SYS", 31.5)
        return link("NV17", 425.0, switched=True) if j == 3 else link("NV18", 450.0, switched=True)

    return page([gpu(i, "NVIDIA H100 80GB HBM3", i // 2) for i in range(4)], join)


def two_fabrics() -> dict[str, Any]:
    return page(
        [gpu(i, numa=i // 4) for i in range(8)],
        lambda i, j: link("NV6", 150.0, switched=True) if i // 4 == j // 4 else link("SYS", 7.88),
    )


def two_bridges(numa_nodes: int = 2) -> dict[str, Any]:
    gpus = [gpu(i, "NVIDIA A100 80GB PCIe", i * numa_nodes // 4) for i in range(4)]
    other = "SYS" if numa_nodes == 2 else "PIX"
    return page(gpus, lambda i, j: link("NV12", 300.0) if i // 2 == j // 2 else link(other, 15.75))


def pcie(count: int = 16) -> dict[str, Any]:
    """Four GPUs behind each PCIe switch, two switches in each NUMA node."""

    def join(i: int, j: int) -> dict[str, Any]:
        if i // 4 == j // 4:
            return link("PIX", 15.76)
        return link("PHB", 12.608) if i // 8 == j // 8 else link("SYS", 7.88)

    return page([gpu(i, "NVIDIA A10", i // 8) for i in range(count)], join)


def mixed() -> dict[str, Any]:
    """Two bridges, T4s behind a switch and one without, an index gap, one GPU of no known NUMA node."""
    gpus = [gpu(i, "NVIDIA A40", 0) for i in range(4)]
    gpus += [gpu(5, "Tesla T4", 1), gpu(6, "Tesla T4", 1), gpu(7, "Tesla T4", 1), gpu(9, "Tesla T4", None)]

    def join(i: int, j: int) -> dict[str, Any]:
        if (i, j) in {(0, 1), (2, 3)}:
            return link("NV4", 56.25)
        if (i, j) == (4, 5):
            return link("PIX", 15.76)
        return link("NODE", 11.03) if i // 4 == j // 4 and j < 7 else link("SYS", 7.88)

    return page(gpus, join)


def one() -> dict[str, Any]:
    return page([gpu(0, "NVIDIA RTX PRO 6000 Blackwell Server Edition", None)], hybrid_cube_mesh)


def empty(**changes: Any) -> dict[str, Any]:
    return page([], hybrid_cube_mesh, **changes)


def hostile() -> dict[str, Any]:
    """Names as no cluster should have them."""
    bad = "</text><script>&\"'\x00\x1b[31m\ud800\u202e\n\ufffe" + "W" * 80
    return page([gpu(0, bad, holders=[bad, bad]), gpu(1, bad, uuid=bad)], hybrid_cube_mesh, node=bad * 3)
