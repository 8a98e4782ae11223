"""No isolation: for mode `share`, whole GPUs, and trials."""

from gpuagent.domain.grant import Grant
from gpuagent.domain.mode import Isolates
from gpuagent.domain.pods import Owner


class NoIsolation:
    """Adds nothing and promises nothing."""

    name = "none"
    isolates: frozenset[Isolates] = frozenset()

    def prepare(self, grant: Grant) -> Grant:
        return grant

    def verify(self, grant: Grant, owner: Owner | None) -> None:
        """Nothing to verify."""
