"""Clusters before 1.36, by the feature gates that mode `dra` uses and that are off there by default."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.cluster import Cluster

SHARES, TAINTS, SETS = "DRAConsumableCapacity", "DRADeviceTaints", "DRAPartitionableDevices"
NAMED, HEALTH = "DRAExtendedResource", "ResourceHealthStatus"
ALL = (SHARES, TAINTS, SETS, NAMED, HEALTH)
EVERY = frozenset(ALL)


@dataclass(frozen=True)
class Gates:
    """The version that the control plane emulates, and the gates of `ALL` that are on there and in kubelet."""

    version: str
    on: frozenset[str]

    @property
    def flags(self) -> list[str]:
        """Of each component of the control plane."""
        wanted = [f"{gate}={str(gate in self.on).lower()}" for gate in ALL]
        return [f"--emulated-version={self.version}", f"--feature-gates={','.join(wanted)}"]

    def __str__(self) -> str:
        return f"{self.version} with {' and '.join(sorted(self.on)) or 'none'}"


@contextmanager
def applied(cluster: Cluster, gates: Gates) -> Iterator[Gates]:
    """The cluster has these gates. Its kubelet is one that is not newer than the API server seems to be."""
    with cluster.control_plane_flags(*gates.flags):
        cluster.restart_kubelet("1.35", feature_gates=tuple(sorted(gates.on)))
        yield gates
