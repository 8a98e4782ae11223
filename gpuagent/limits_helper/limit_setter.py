"""Sets and reads limits: checks the target, makes the calls, and compares the driver's report with the request."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.host import cgroups
from gpuagent.host.cgroups import CgroupError, Identity, NoCgroupError, PodsRoot, PodsRootError
from gpuagent.host.limits_client import (
    NO_LIMIT,
    BelowUseError,
    Description,
    Limit,
    LimitDriverError,
    NoTargetError,
    RefusedError,
    Target,
)
from gpuagent.limits_helper import diagnosis, host_facts
from gpuagent.limits_helper.open_driver import OpenDriver
from gpuagent.limits_helper.probe import NAME as PROBE
from gpuagent.limits_helper.probe import TellBackend, backend_by_files, has_mig, probe
from gpuagent.nvml.binding.limit_calls import LimitCalls
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, DriverError, driver_error

log = logging.getLogger(__name__)

_MOST_NOTED = 4096
PROBED_S = 60.0
PROBLEM_S = 5.0
"""How long the result of a probe is reported without another one: if memory can be limited, and if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupPlace:
    """Where the pods' cgroups are.

    Attributes:
        root: where cgroups are mounted.
        pods: path of the pods root below it; empty: it is searched.
        own_pod: UID of the pod that this process runs in; empty if it is not known.
    """

    root: Path = cgroups.CGROUP_ROOT
    pods: str = ""
    own_pod: str = ""

    def pods_root(self) -> PodsRoot:
        """The pods root. Raises PodsRootError."""
        if self.pods:
            return cgroups.named_pods_root(self.root, self.pods)
        return cgroups.find_pods_root(self.root, self.own_pod)


class LimitSetter:
    """Sets limits, and notes which. NVML is open from its first call on.

    For one thread. Methods raise LimitsError.

    Args:
        place: of the cgroups.
        nvml: makes the calls.
        tell_backend: see `TellBackend`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        place: CgroupPlace,
        nvml: LimitCalls,
        tell_backend: TellBackend = backend_by_files,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._tell_backend = tell_backend
        self._clock = clock
        self._nvml = nvml
        self._driver = OpenDriver(nvml)
        self._root: PodsRoot | None = None
        self._described: Description | None = None
        self._described_at = 0.0
        self._limited: dict[str, set[str]] = {}
        self._set_leaves: dict[Target, None] = {}
        """Of containers, the latest last."""

    @property
    def is_outdated(self) -> bool:
        """NVML's library is of a former driver. A restart of the container gets it the present one's."""
        return self._driver.is_outdated

    def set(self, target: Target, size: int) -> Limit:
        """Set a hard limit, and return what the driver reports then."""
        directory, identity = self._cgroup(target)
        if target.leaf:
            self._note_leaf(target)
        refused = None
        try:
            self._driver.ask(target.gpu, lambda gpu: self._nvml.set_memory_limits(gpu, directory, 0, size))
        except CallError as err:
            refused = err
        self._check_same(directory, identity)
        limit = self._read(target.gpu, directory, identity)
        self._note(target, limit)
        if refused is None and limit.is_of(size):
            log.info("Set limit", extra=_log_fields(target, size, limit))
            return limit
        # Which code the driver has for this is not documented, and backend dmem reports success.
        if limit.used > size:
            raise BelowUseError(_below_use(target, size, limit.used), limit.used)
        # What worked at the last probe does not work now.
        self._described = None
        if refused:
            raise self._driver_error(refused, target.gpu)
        raise LimitDriverError(diagnosis.why_ignored(size, limit.hard))

    def get(self, target: Target) -> Limit:
        """The limit in force."""
        directory, identity = self._cgroup(target)
        limit = self._read(target.gpu, directory, identity)
        # The driver has one answer for "no limit there" and for "no limits at all": only the probe tells them apart.
        unusable = self._described.gpus.get(target.gpu) if self._described else None
        if limit.hard is None and unusable:
            raise LimitDriverError(unusable)
        return limit

    def limited_gpus(self, pod: str) -> frozenset[str]:
        """UUIDs of the GPUs on which this process has set or seen a limit of the pod."""
        return frozenset(self._limited.get(pod, ()))

    def has_set(self, target: Target) -> bool:
        """Whether this process was told a limit for that container lately, whatever came of it."""
        return target in self._set_leaves

    def _note_leaf(self, target: Target) -> None:
        if len(self._set_leaves) >= _MOST_NOTED:
            oldest = next(iter(self._set_leaves))
            del self._set_leaves[oldest]
        self._set_leaves[target] = None

    def _note(self, target: Target, limit: Limit) -> None:
        if target.leaf or limit.hard is None:
            return
        if len(self._limited) >= _MOST_NOTED:
            self._limited.clear()  # most of these pods have ended
        self._limited.setdefault(target.pod, set()).add(target.gpu)

    def describe(self) -> Description:
        """What can be limited here. Tried again when the last result is too old, or a limit could not be set."""
        if self._described is None or self._is_old(self._described):
            former = self._described
            self._described = self._describe()
            self._described_at = self._clock()
            if self._described != former:
                log.info("Tried whether memory can be limited", extra=_probe_fields(self._described))
        return self._described

    def _is_old(self, description: Description) -> bool:
        # Without a driver, trying is cheap. And if there was one, it may have gone.
        if not self._driver.is_there():
            return True
        good_for_s = PROBLEM_S if description.problem else PROBED_S
        return self._clock() - self._described_at >= good_for_s

    def _describe(self) -> Description:
        try:
            self._root = self._place.pods_root()
        except PodsRootError as err:
            # If the driver cannot limit memory here, the tree of cgroups may be as odd for the same reason. Then that
            # reason is the one to tell, so limits are tried at the root of all cgroups.
            described = self._probed(self._place.root)
            return replace(described, problem=described.problem or str(err))
        # Beside the pods: cgroups elsewhere may have other controllers, so limits may work there alone.
        described = self._probed(self._root.path)
        return replace(described, pods_root=self._root.path)

    def _probed(self, parent: Path) -> Description:
        """What can be limited in cgroups below `parent`."""
        facts = host_facts.read(self._place.root)
        try:
            probed = probe(self._nvml, self._driver.listed(), parent / PROBE, facts, self._tell_backend)
            self._driver.check()
        except DriverError as err:
            return Description("", None, "", {}, f"the NVIDIA driver cannot be used: {err}")
        driver = self._nvml.driver_version()
        return Description(driver, None, probed.backend, probed.gpus, probed.problem)

    def _cgroup(self, target: Target) -> tuple[Path, Identity]:
        """The directory of a target, and what it is now."""
        root = self._pods_root()
        directory = root.pod_directory(target.pod)
        if directory is None:
            raise NoTargetError(f"pod {target.pod} has no cgroup below {root.path}: it has ended, or has not started")
        if target.leaf:
            directory /= target.leaf
        try:
            return directory, cgroups.identify(self._place.root, directory)
        except NoCgroupError as err:
            raise NoTargetError(str(err)) from err
        except CgroupError as err:
            raise RefusedError(str(err)) from err

    def _pods_root(self) -> PodsRoot:
        if self._root is None or not self._root.path.is_dir():
            try:
                self._root = self._place.pods_root()
            except PodsRootError as err:
                raise NoTargetError(str(err)) from err
        return self._root

    def _check_same(self, directory: Path, identity: Identity) -> None:
        """Raise NoTargetError if another directory has the name by now.

        NVML opens the path itself, so this only shows a change, and does not prevent it. Only root on the node
        can make one: there are no links in cgroups, and a name contains the UID or the id of what it is for.
        """
        try:
            has_changed = cgroups.identify(self._place.root, directory) != identity
        except CgroupError as err:
            raise NoTargetError(str(err)) from err
        if has_changed:
            raise NoTargetError(f"cgroup {directory} was removed and made again meanwhile: ask again")

    def _read(self, uuid: str, directory: Path, identity: Identity) -> Limit:
        try:
            limits = self._driver.ask(uuid, lambda gpu: self._nvml.memory_limits(gpu, directory))
        except CallError as err:
            # The driver does not tell a cgroup that has just been removed from one that it cannot account for.
            self._check_same(directory, identity)
            raise self._driver_error(err, uuid) from err
        if limits is None:
            return Limit(None, 0)
        return Limit(None if limits.hard == NO_LIMIT else limits.hard, limits.used)

    def _driver_error(self, err: CallError, uuid: str) -> LimitDriverError:
        self._described = None
        if err.code in DRIVER_WIDE:
            self._driver.close()
            return LimitDriverError(f"the NVIDIA driver cannot be used: {driver_error(err)}")
        facts = host_facts.read(self._place.root)
        mig = has_mig(self._nvml, self._driver.gpu(uuid))
        return LimitDriverError(diagnosis.why_refused(err, facts, driver=self._nvml.driver_version(), mig=mig))


def _below_use(target: Target, size: int, used: int) -> str:
    what = f"container {target.leaf} of pod {target.pod}" if target.leaf else f"pod {target.pod}"
    return f"{what} uses {_gib(used)} of GPU memory, more than the new limit of {_gib(size)}; the former limit holds"


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.4g} GiB"


def _log_fields(target: Target, size: int, limit: Limit) -> dict[str, object]:
    return {"gpu": target.gpu, "pod": target.pod, "leaf": target.leaf, "bytes": size, "used": limit.used}


def _probe_fields(description: Description) -> dict[str, object]:
    return {
        "driver": description.driver,
        "backend": description.backend,
        "pods_root": description.pods_root,
        "gpus": dict(description.gpus),
        "problem": description.problem,
    }
