"""Ports of the node that pods ask for."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from gpuagent.domain.pods.json_values import mappings, number, text
from gpuscheduler.core.constraints.selectors import TooLarge

MOST_PORTS = 128
"""Ports of a pod that are read."""
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 (it is compared, not listened on)


class HostPort(NamedTuple):
    """A port of the node."""

    port: int
    protocol: str
    address: str

    def conflicts(self, other: "HostPort") -> bool:
        """Whether two pods on one node cannot have these."""
        if (self.port, self.protocol) != (other.port, other.protocol):
            return False
        return self.address == other.address or ANY_ADDRESS in {self.address, other.address}


def host_ports(spec: Mapping[str, Any]) -> tuple[HostPort, ...]:
    """The ports of the node that a pod's containers and sidecars ask for."""
    sidecars = [init for init in mappings(spec.get("initContainers")) if init.get("restartPolicy") == "Always"]
    ports: set[HostPort] = set()
    for container in (*sidecars, *mappings(spec.get("containers"))):
        for port in mappings(container.get("ports")):
            host_port = number(port.get("hostPort"))
            if host_port:
                protocol = text(port.get("protocol")) or "TCP"
                address = text(port.get("hostIP")) or ANY_ADDRESS
                ports.add(HostPort(host_port, protocol, address))
                if len(ports) > MOST_PORTS:
                    raise TooLarge(MOST_PORTS, "host ports")
    return tuple(sorted(ports))


def have_conflict(wanted: Collection[HostPort], taken: Sequence[HostPort]) -> bool:
    """Whether a port is wanted that is taken; `taken` is in order."""
    for port in wanted:
        # A pod may have a hundred ports, and most pods want one or two.
        first = bisect_left(taken, (port.port,))
        for other in islice(taken, first, None):
            if other.port != port.port:
                break
            if port.conflicts(other):
                return True
    return False
