"""An isolation driver of simulated nodes: it works all the time, and tells each container what it is limited to."""

from dataclasses import replace

from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Isolates, Mode
from gpuagent.isolation.interface import Need, Report, Starting

MEMORY_LIMIT = "SIMULATED_MEMORY_LIMIT"
CORES_LIMIT = "SIMULATED_CORES_LIMIT"
"""Variables of the containers that are limited: units of memory, and percent of compute, on each GPU."""


class SimulatedIsolation:
    """Promises everything."""

    name = "simulated"

    def start(self, report: Report) -> None:
        report(Layer(driver=self.name, installed=True, isolates=frozenset(Isolates), modes=frozenset(Mode)))

    def desire(self, need: Need) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to end."""

    def prepare(self, grant: Grant) -> Grant:
        variable = MEMORY_LIMIT if grant.kind.is_memory else CORES_LIMIT
        return replace(grant, env={**grant.env, variable: str(grant.units)})

    def verify(self, grant: Grant, starting: Starting) -> None:
        """Nothing to verify."""
