"""What resized pods were granted, as the agent stores it across restarts."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.resize import Resize
from gpuagent.domain.sharing.units import parse_id
from gpuagent.system import json_file
from gpuagent.system.atomic_file import write_whole
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

_VERSION = 1


class ResizeFile:
    """A small file beside the last mode, replaced atomically. For one thread.

    Attributes:
        saved: what the file has, by the UID of the pod.
    """

    def __init__(
        self, directory: Path, *, clock: Callable[[], float] = time.monotonic, backoff: Backoff | None = None
    ) -> None:
        self._path = directory / "resizes.json"
        self._clock = clock
        self._backoff = backoff or Backoff(1.0)
        self._next_try = float("-inf")
        self._problem: str | None = None
        self.saved: Mapping[str, Resize] = {}

    def load(self) -> Mapping[str, Resize]:
        """The resizes of the last run; none if there were none or the file cannot be read, which is logged."""
        try:
            stored = json_file.load(self._path)
            pods = mapping(stored.get("pods"))
            self.saved = {uid: _read(entry) for uid, entry in pods.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            log.warning("Failed to read the stored resizes", extra={"path": str(self._path), "error": err})
        return self.saved

    def keep(self, resizes: Mapping[str, Resize]) -> str | None:
        """Write them to the file. Returns None, or why that failed; call it again to retry, which it does in time."""
        if resizes == self.saved:
            self._problem = None
            return None
        if self._clock() < self._next_try:
            return self._problem
        pods = {uid: _entry(resize) for uid, resize in resizes.items()}
        try:
            write_whole(self._path, json.dumps({"v": _VERSION, "pods": pods}))
        except OSError as err:
            self._next_try = self._clock() + self._backoff.next_s()
            reason = err.strerror or str(err)
            self._problem = f"the limit cannot be recorded in {self._path}: {reason}; the agent tries again"
            return self._problem
        self.saved = dict(resizes)
        self._next_try = float("-inf")
        self._backoff.reset()
        self._problem = None
        return None


def _entry(resize: Resize) -> dict[str, Any]:
    return {
        "namespace": resize.pod.namespace,
        "name": resize.pod.name,
        "limits": dict(resize.limits),
        "most": dict(resize.most),
        "extra": sorted(resize.extra),
    }


def _read(entry: Any) -> Resize:  # noqa: ANN401 (whatever the file has)
    """One resize. Raises ValueError or TypeError: it is not one."""
    namespace = text(entry["namespace"])
    name = text(entry["name"])
    return Resize(
        pod=PodName(namespace, name),
        limits=_limits(entry["limits"]),
        most=_limits(entry["most"]),
        extra=_device_ids(entry["extra"]),
    )


def _device_ids(values: Any) -> frozenset[str]:  # noqa: ANN401 (whatever the file has)
    ids = frozenset(map(str, values))
    for device_id in ids:
        if parse_id(device_id) is None:
            raise ValueError(f"{device_id!r} is not a device id")
    return ids


def _limits(values: Any) -> dict[str, int]:  # noqa: ANN401 (whatever the file has)
    limits = {}
    for container, units in values.items():
        if type(units) is not int:
            raise TypeError(f"{units!r} is not a number of units")
        limits[str(container)] = units
    return limits
