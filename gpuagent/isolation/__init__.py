"""Isolation drivers: what keeps the containers on one GPU apart. One file a driver; `none` keeps nothing apart."""

from typing import Protocol

from gpuagent.domain.grant import Grant
from gpuagent.domain.mode import Isolates
from gpuagent.domain.pods import Owner


class IsolationError(Exception):
    """The layer does not work for this container now; kubelet may try again."""


class Isolation(Protocol):
    """What the agent asks of a driver."""

    name: str
    isolates: frozenset[Isolates]
    """What it keeps apart; a mode that promises more stays at zero."""

    def prepare(self, grant: Grant) -> Grant:
        """The grant with what the driver adds: environment, mounts, device nodes. Quick, local, repeatable.

        Raises:
            IsolationError: this share cannot be isolated; the pod is refused with the text.
        """

    def verify(self, grant: Grant, owner: Owner | None) -> None:
        """Check, just before a container starts, that the layer is alive and set for it.

        Raises:
            IsolationError: it is not; the container waits and kubelet tries again.
        """
