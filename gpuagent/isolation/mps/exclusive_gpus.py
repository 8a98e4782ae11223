"""The GPUs of containers that MPS isolates: exclusive to MPS from their first container on."""

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.host.mps_client import MpsError
from gpuagent.isolation.interface import Need
from gpuagent.isolation.mps.exclusive import ExclusiveModes

log = logging.getLogger(__name__)


class ExclusiveGpus:
    """Makes GPUs exclusive to MPS, tries again where that failed, and gives back those that are no longer needed.

    Args:
        modes: sets the compute modes; None leaves them alone.
    """

    def __init__(self, modes: ExclusiveModes | None) -> None:
        self._modes = modes
        self.failed: Mapping[str, str] = {}
        """UUID of a GPU that could not be made exclusive to the reason."""

    def hold(self, gpus: Iterable[Gpu]) -> None:
        """Make the GPUs of a container exclusive.

        Raises:
            MpsError: one cannot be made exclusive. It is left out until a later try succeeds.
        """
        if self._modes is None:
            return
        uuids = [gpu.uuid for gpu in gpus]
        try:
            self._modes.hold(uuids)
        except MpsError as err:
            problem = f"it cannot be made exclusive to MPS: {err}"
            self.failed = {**self.failed, **dict.fromkeys(uuids, problem)}
            raise MpsError(problem) from err
        self._forget_failure(uuids)

    def settle(self, need: Need) -> None:
        """Retry the GPUs that could not be made exclusive; restore the mode of GPUs that no container of MPS holds."""
        if self._modes is None:
            return
        if need.serves:
            self._retry(self._modes)
            return
        self.failed = {}
        if need.in_use and not need.held:
            return  # the agent has not read kubelet's allocations yet
        try:
            self._modes.give_back(keep=need.held)
        except MpsError as err:
            log.warning("Kept compute modes for now", extra={"error": str(err)})

    def _retry(self, modes: ExclusiveModes) -> None:
        for uuid in self.failed:
            with suppress(MpsError):
                modes.hold((uuid,))
                self._forget_failure({uuid})

    def _forget_failure(self, uuids: Collection[str]) -> None:
        self.failed = {uuid: reason for uuid, reason in self.failed.items() if uuid not in uuids}
