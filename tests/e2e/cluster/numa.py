"""A machine of two NUMA nodes, for one process: kubelet's Topology Manager has nothing to decide on one of one node."""

import shlex
from collections.abc import Sequence
from pathlib import Path

_NODES = Path("/sys/devices/system/node")
_CPUS = Path("/sys/devices/system/cpu")


def two_nodes(tree: Path) -> Path:
    """Make the directory that stands in for the kernel's: half of the CPUs and of the memory in each node."""
    cpus = sorted(int(path.name.removeprefix("cpu")) for path in _CPUS.glob("cpu[0-9]*"))
    memory_kib = int((_NODES / "node0" / "meminfo").read_text().split()[3])
    half = (len(cpus) + 1) // 2
    for number, mine in enumerate((cpus[:half], cpus[half:])):
        node = tree / f"node{number}"
        node.mkdir(parents=True, exist_ok=True)
        for cpu in mine:
            link = node / f"cpu{cpu}"
            link.unlink(missing_ok=True)
            link.symlink_to(_CPUS / link.name)
        (node / "meminfo").write_text(f"Node {number} MemTotal:       {memory_kib // 2} kB\n")
        (node / "distance").write_text(("10 21\n", "21 10\n")[number])
    return tree


def shown(tree: Path, command: Sequence[str]) -> list[str]:
    """The command that runs `command`, in the same process, where `tree` is in the place of the machine's NUMA nodes.

    It runs in a mount namespace of its own, so the machine's /sys stays as it is. What is mounted below a directory
    that is shared goes to and fro all the same. Kubelet's is shared from the first start of any kubelet on, which
    therefore has to be one in the machine's own namespace: volumes then reach containerd, which lives there.
    """
    script = (
        f"mount --make-rprivate /sys && mount --bind {shlex.quote(str(tree))} {_NODES} && exec {shlex.join(command)}"
    )
    return ["unshare", "--mount", "--propagation", "unchanged", "/bin/sh", "-c", script]
