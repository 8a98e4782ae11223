"""Boxes of equal GPUs, as tests and simulated clusters need them."""

from collections.abc import Sequence

from gpuagent.simulation.boxes import Box, BoxGpu, uuid_of


def equal_gpus(name: str, gpus: int, gib: int, numa: Sequence[int | None] = ()) -> Box:
    """So many GPUs of `gib` GiB. The same name and number give the same GPUs.

    Args:
        name: of the box; its GPUs' UUIDs follow from it.
        gpus: how many.
        gib: memory of each.
        numa: the NUMA node of each; empty for none.
    """
    return Box(
        name=name,
        gpus=tuple(
            BoxGpu(
                uuid=uuid_of(name, index),
                minor=index,
                pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
                model="NVIDIA A100-SXM4-80GB",
                memory_mib=gib * 1024,
                reserved_mib=500,
                compute_capability=(8, 0),
                numa_node=numa[index] if numa else None,
                mig=False,
            )
            for index in range(gpus)
        ),
    )
