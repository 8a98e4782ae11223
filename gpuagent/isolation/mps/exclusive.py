"""Compute modes for MPS: EXCLUSIVE_PROCESS while containers share a GPU, the former mode afterwards.

In EXCLUSIVE_PROCESS only the MPS server may have contexts on a GPU. So a container that clears its MPS variables gets
no GPU instead of an unlimited one. NVIDIA recommends it for MPS. The agent notes the former mode on disk first.
"""

import logging
import subprocess
import threading
from collections.abc import Collection, Iterable, Sequence

from gpuagent.host.mps_client import MpsError, environment, find_program
from gpuagent.isolation.mps.daemon_record import MpsRecord
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

EXCLUSIVE = "Exclusive_Process"
_SERVER = "nvidia-cuda-mps-server"
_OFF = "make it work for root, or run MPS without exclusive compute mode"


class ExclusiveModes:
    """Sets and restores compute modes through nvidia-smi. May be used from any thread; one change at a time.

    Args:
        record: where former modes are noted.
        smi: name or path of nvidia-smi.
        deadline_s: how long one call of it may take; without persistence mode it loads the driver first.
    """

    def __init__(self, record: MpsRecord, *, smi: str = "nvidia-smi", deadline_s: float = 10.0) -> None:
        self._record = record
        self._smi = smi
        self._deadline_s = deadline_s
        self._lock = threading.Lock()

    def hold(self, uuids: Iterable[str]) -> None:
        """Make these GPUs exclusive to MPS. Runs nvidia-smi each time: others may have changed a mode since.

        Raises:
            MpsError: a mode cannot be read, noted or set.
        """
        with self._lock:
            modes = self._modes()
            for uuid in uuids:
                if uuid not in modes:
                    raise MpsError(f"nvidia-smi does not list GPU {uuid}; its compute mode is not known")
                if modes[uuid] == EXCLUSIVE:
                    continue
                try:
                    # Before the change: a mode that was not noted would never be restored.
                    self._record.changed(uuid, modes[uuid])
                except OSError as err:
                    why = error_words(err)
                    raise MpsError(f"the compute mode of GPU {uuid} cannot be noted, so it stays: {why}") from err
                self._change(uuid, EXCLUSIVE)

    def give_back(self, keep: Collection[str] = ()) -> None:
        """Restore the changed mode of every GPU on which no program computes; the others wait for the next call.

        Args:
            keep: GPUs (UUIDs) that containers of MPS hold, computing at this moment or not.

        Raises:
            MpsError: a mode cannot be read or set.
        """
        with self._lock:
            if not self._record.modes:
                return
            modes = self._modes()
            busy = self._busy()
            for uuid, former in self._record.modes.items():
                if uuid in busy or uuid in keep or uuid not in modes:
                    continue
                if modes[uuid] == EXCLUSIVE:  # otherwise an operator has changed it since
                    self._change(uuid, former)
                try:
                    self._record.given_back(uuid)
                except OSError as err:
                    log.warning("Failed to note a compute mode", extra={"gpu": uuid, "error": err})

    def _modes(self) -> dict[str, str]:
        return dict(self._rows("--query-gpu=uuid,compute_mode"))

    def _busy(self) -> set[str]:
        rows = self._rows("--query-compute-apps=gpu_uuid,process_name")
        return {uuid for uuid, name in rows if not name.endswith(_SERVER)}

    def _rows(self, query: str) -> list[tuple[str, str]]:
        """The rows of two columns, of which the first is a UUID. Lines of other texts are skipped."""
        rows = []
        text = self._run((query, "--format=csv,noheader"))
        for line in text.splitlines():
            uuid, comma, value = line.partition(",")
            if comma:
                rows.append((uuid.strip(), value.strip()))
        return rows

    def _change(self, uuid: str, mode: str) -> None:
        arguments = ("-i", uuid, "-c", mode.upper())
        self._run(arguments)
        log.info("Set compute mode", extra={"gpu": uuid, "mode": mode})

    def _run(self, arguments: Sequence[str]) -> str:
        program = find_program(self._smi)
        if program is None:
            raise MpsError(f"{self._smi} was not found, which sets compute modes: {_OFF}")
        try:
            done = subprocess.run(  # noqa: S603 (the driver's own program)
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(),
                timeout=self._deadline_s,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MpsError(f"nvidia-smi {' '.join(arguments)} took more than {self._deadline_s:g} s") from None
        except OSError as err:
            raise MpsError(f"{program} cannot be run: {err.strerror}") from err
        if done.returncode:
            output = done.stdout.strip()
            raise MpsError(f"nvidia-smi {' '.join(arguments)} failed ({done.returncode}): {output}; {_OFF}")
        return done.stdout
