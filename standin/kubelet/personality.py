"""The differences between kubelet versions, as one value."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Registry(enum.Enum):
    """How a kubelet answers ``Register`` and keeps its clients."""

    BACKGROUND = "answers at once, dials later, options from the request (up to 1.24)"
    BY_NAME = "dials inside Register, clients by resource name (1.25 to 1.36)"
    BY_PATH = "dials inside Register, clients by resource name and socket path (from 1.37)"


@dataclass(frozen=True, slots=True)
class Personality:
    """The behavior of one kubelet version, derived from its minor number."""

    minor: int

    @classmethod
    def of(cls, version: str) -> Personality:
        """Read ``1.36`` or ``v1.36.3``."""
        major, _, rest = version.removeprefix("v").partition(".")
        minor = rest.partition(".")[0]
        if major != "1" or not minor.isdigit():
            raise ValueError(f"not a kubelet version: {version!r}")
        return cls(int(minor))

    @property
    def registry(self) -> Registry:
        """The registration code of this version."""
        if self.minor < 25:
            return Registry.BACKGROUND
        return Registry.BY_NAME if self.minor < 37 else Registry.BY_PATH

    @property
    def prefers(self) -> bool:
        """Whether ``GetPreferredAllocation`` exists."""
        return self.minor >= 19

    @property
    def checks_health(self) -> bool:
        """Whether admission looks at the health of a resource, and of devices a container already holds."""
        return self.minor >= 25

    @property
    def crashes_on_vanished_device(self) -> bool:
        """Whether the device table holds pointers, so that a vanished device is a nil dereference."""
        return self.minor >= 34

    @property
    def clears_every_file(self) -> bool:
        """Whether the start-up clean-up removes more than sockets."""
        return self.minor < 34

    @property
    def pod_resources_v1(self) -> bool:
        """Whether pod-resources v1 is served in addition to v1alpha1."""
        return self.minor >= 20

    @property
    def pod_resources_allocatable(self) -> bool:
        """Whether ``GetAllocatableResources`` is on by default."""
        return self.minor >= 23

    @property
    def pod_resources_get(self) -> bool:
        """Whether ``Get`` is on by default."""
        return self.minor >= 34

    @property
    def pod_resources_by_id(self) -> bool:
        """Whether a container's devices come one entry per id; 1.18 and 1.19 send one per resource."""
        return self.minor >= 20

    @property
    def checkpoint_by_numa(self) -> bool:
        """Whether the checkpoint has devices by NUMA node."""
        return self.minor >= 20

    @property
    def pod_resources_limited(self) -> bool:
        """Whether pod-resources calls are rate limited."""
        return self.minor >= 26

    @property
    def lists_active_pods_only(self) -> bool:
        """Whether pod-resources ``List`` leaves ended pods out."""
        return self.minor >= 34

    @property
    def dra_services(self) -> tuple[str, ...]:
        """Services of DRA drivers that this version calls, the preferred one first."""
        if self.minor >= 34:
            return ("v1.DRAPlugin", "v1beta1.DRAPlugin")
        return ("v1beta1.DRAPlugin",) if self.minor >= 32 else ()

    @property
    def dra_health_services(self) -> tuple[str, ...]:
        """Services for health that a driver has to name, the preferred one first; none if no name is needed."""
        return ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth") if self.minor >= 37 else ()

    @property
    def rejection(self) -> str:
        """The words that kubelet puts before the reason when it rejects a pod."""
        return "Pod was rejected: " if self.minor >= 25 else "Pod "
