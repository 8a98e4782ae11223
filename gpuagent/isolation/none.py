"""No isolation: for mode `share`, whole GPUs, and trials."""

from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import NO_LAYER, NONE
from gpuagent.isolation.interface import Isolation, Need, Options, Report, Starting

PREFERENCE = 100


def make(_options: Options) -> Isolation:
    """The driver."""
    return NoIsolation()


class NoIsolation:
    """Adds nothing and isolates nothing."""

    name = NONE

    def start(self, report: Report) -> None:
        report(NO_LAYER)

    def desire(self, need: Need) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to end."""

    def prepare(self, grant: Grant) -> Grant:
        return grant

    def verify(self, grant: Grant, starting: Starting) -> None:
        """Nothing to verify."""
