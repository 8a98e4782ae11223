"""The files of a prepared claim: a record that outlives the agent and the claim, and the CDI specification."""

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.system import json_file
from gpuagent.system.atomic_file import write_whole

log = logging.getLogger(__name__)

WRITTEN_S = 60.0
"""A scratch file is older than this only if its agent has ended: another one may be writing now."""
_UID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z-]{0,62}")


class ClaimFiles:
    """Records below `state_dir`, and CDI specifications in `cdi_dir`.

    The record is written first and removed last. So each specification of this driver has a record. While one agent
    replaces another, both use the files.
    """

    def __init__(self, state_dir: Path, cdi_dir: Path) -> None:
        self.records = state_dir / "claims"
        self._cdi_dir = cdi_dir

    def sweep(self) -> None:
        """Remove what an agent left that ended amid a write; harmless where it cannot be removed."""
        scratch_files = [
            *self.records.glob(".*.json.*"),
            *self._cdi_dir.glob(f".{DRA_DRIVER}-claim-*"),
        ]
        for path in scratch_files:
            with suppress(OSError):
                age_s = time.time() - path.stat().st_mtime
                if age_s > WRITTEN_S:
                    path.unlink()

    def read(self, known: Mapping[str, PreparedClaim] = MappingProxyType({})) -> dict[str, PreparedClaim]:
        """The prepared claims by UID. A record that cannot be read is logged and left where it is.

        It stands for a claim without GPUs, as its claim may have any.

        Args:
            known: are not read again.
        """
        claims = {}
        for path in sorted(self.records.glob("*.json")):
            claim = known.get(path.stem)
            # One without GPUs may be readable by now.
            if claim is None or not claim.gpus:
                claim = _read(path)
            if claim is not None:
                claims[claim.uid] = claim
        return claims

    def write(self, claim: PreparedClaim) -> None:
        """Write the record, before the specification: without a record, that would never be removed.

        Raises:
            OSError: it could not be written.
            ValueError: the UID cannot be a file's name.
        """
        record = json.dumps(claim.record())
        write_whole(self._record(claim.uid), record)

    def write_spec(self, uid: str, spec: dict[str, Any]) -> None:
        """Write the specification, also where it is there: a reboot may have emptied its folder. Raises as `write`."""
        # After a crash of the machine, kubelet has the claim prepared again, so it need not be on the disk.
        write_whole(self._spec(uid), json.dumps(spec, indent=1), on_disk=False)

    def show(self, claim: PreparedClaim) -> None:
        """Write the record for other agents on the node, without waiting for the disk. Raises as `write`."""
        record = json.dumps(claim.record())
        write_whole(self._record(claim.uid), record, on_disk=False)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other agents out, which compare the records before they add one. Without a folder, there is no lock."""
        try:
            self.records.mkdir(parents=True, exist_ok=True)
            number = os.open(self.records, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield  # the record cannot be written either, and that is reported
            return
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    def remove(self, uid: str) -> None:
        """Remove both; harmless if they are gone. Raises OSError and ValueError."""
        self._spec(uid).unlink(missing_ok=True)
        self._record(uid).unlink(missing_ok=True)

    def _record(self, uid: str) -> Path:
        return self.records / f"{_checked(uid)}.json"

    def _spec(self, uid: str) -> Path:
        return self._cdi_dir / f"{DRA_DRIVER}-claim-{_checked(uid)}.json"


def _read(path: Path) -> PreparedClaim | None:
    """The claim of a record; None if another agent has removed it just now."""
    try:
        return PreparedClaim.of_record(json_file.load(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as err:
        log.warning("Failed to read a claim's record", extra={"path": str(path), "error": str(err)})
        return PreparedClaim(
            uid=path.stem,
            namespace="",
            name=f"in {path}",
            layer="",
            gpus=(),
        )


def _checked(uid: str) -> str:
    if not _UID.fullmatch(uid):
        raise ValueError(f"{uid!r} is not the UID of a claim")
    return uid
