"""Two drivers as one: `limits` for memory, and `mps` for compute."""

from collections.abc import Mapping
from dataclasses import replace

from gpuagent.domain.sharing.gpu_share import whole_of
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import LIMITS, LIMITS_AND_MPS, MPS
from gpuagent.isolation.interface import Isolation, Serving, Starting
from gpuagent.isolation.mps.share import MEMORY_VARIABLE


class LimitsAndMps:
    """What containers get from both. The drivers themselves are started, stopped and told the need one by one."""

    name = LIMITS_AND_MPS

    def __init__(self, limits: Isolation, mps: Isolation) -> None:
        self._limits = limits
        self._mps = mps

    def prepare(self, grant: Grant) -> Grant:
        """As `Isolation.prepare`. MPS gets no cap for memory, because its caps hold for single processes only."""
        given = self._mps.prepare(grant)
        env = {name: value for name, value in given.env.items() if name != MEMORY_VARIABLE}
        return self._limits.prepare(replace(given, env=env))

    def verify(self, grant: Grant, starting: Starting) -> None:
        """As `Isolation.verify`."""
        self._limits.verify(grant, starting)
        shares = {}
        for gpu in grant.gpus:
            share = starting.shares.get(gpu.uuid, whole_of(gpu))
            # The first driver limits memory, and may also raise the limit of a container while it runs.
            shares[gpu.uuid] = share.with_all_memory(gpu)
        self._mps.verify(grant, replace(starting, shares=shares))


def with_pair(drivers: Mapping[str, Isolation]) -> dict[str, Serving]:
    """The drivers by name, with the two that serve together."""
    every: dict[str, Serving] = dict(drivers)
    if LIMITS in drivers and MPS in drivers:
        every[LIMITS_AND_MPS] = LimitsAndMps(drivers[LIMITS], drivers[MPS])
    return every
