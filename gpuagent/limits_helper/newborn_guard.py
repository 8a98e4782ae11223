"""Gives containers the limit of their pod as they appear, also while no agent runs.

On backend misc, a limit outlives its cgroup. So a new container may be born with that of a dead one, and then the limit
of its pod does not hold for it. The agent puts that right as well, and knows more. But it may have ended just now.
"""

import logging
from collections.abc import Collection
from contextlib import suppress

from gpuagent.host.cgroup_watch import CgroupWatch
from gpuagent.host.cgroups import PodsRoot, leaves
from gpuagent.host.limits_client import Description, LimitsError, NoTargetError, Target
from gpuagent.limits_helper.driver_thread import DriverThread
from gpuagent.limits_helper.limit_setter import LimitSetter
from gpuagent.limits_helper.probe import MISC

log = logging.getLogger(__name__)

_MOST_KNOWN = 4096


class NewbornGuard:
    """Watches the cgroups of all pods, and looks at each new container once.

    Containers that are there when it begins are the agent's: it may have given them limits of their own.

    Args:
        setter: reads and sets limits, in `thread` only.
        thread: where it does.
    """

    def __init__(self, setter: LimitSetter, thread: DriverThread) -> None:
        self._setter = setter
        self._thread = thread
        self._root: PodsRoot | None = None
        self._gpus: Collection[str] = ()
        self._known: set[tuple[str, str]] = set()
        self._watch: CgroupWatch | None = None

    def follow(self, description: Description) -> None:
        """Watch the pods, if the driver is as described. To be called again when that may have changed."""
        self._gpus = [gpu for gpu, why in description.gpus.items() if why is None]
        if description.backend != MISC or description.pods_root is None:
            return
        root = PodsRoot(description.pods_root)
        if root != self._root:
            self.stop()
            self._begin(root)

    def stop(self) -> None:
        """Watch no pods any more."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._root = None

    def _begin(self, root: PodsRoot) -> None:
        try:
            watch = CgroupWatch(self._appeared, self._watch_pods, name="newborn-guard")
        except OSError as err:
            # The agent looks as well.
            log.warning("Failed to watch for new containers", extra={"error": err})
            return
        self._root = root
        self._watch = watch
        self._known = _containers(root)
        watch.start()
        self._watch_pods()

    def _watch_pods(self) -> None:
        if self._watch is None or self._root is None:
            return
        try:
            self._watch.add_pods_of(self._root)
        except OSError as err:
            log.warning("Failed to watch for new containers", extra={"error": err})

    # -- in the thread of the watch ----------------------------------------------------------------------------

    def _appeared(self, pod: str, leaf: str) -> None:
        if leaf:
            self._look_at(pod, leaf)
            return
        directory = self._root.pod_directory(pod) if self._root else None
        if directory and self._watch:
            with suppress(OSError):  # it has ended
                self._watch.add(pod, directory)

    def _look_at(self, pod: str, leaf: str) -> None:
        if (pod, leaf) in self._known:
            return
        if self._root and len(self._known) >= _MOST_KNOWN:
            self._known = _containers(self._root)
        self._known.add((pod, leaf))
        try:
            self._thread.run(lambda: self._give_limits_of_pod(pod, leaf))
        except NoTargetError:
            return  # it has ended
        except LimitsError as err:
            log.warning("Failed to look at a new container", extra={"pod": pod, "leaf": leaf, "error": str(err)})

    # -- in the driver's thread --------------------------------------------------------------------------------

    def _give_limits_of_pod(self, pod: str, leaf: str) -> None:
        # Many containers may appear at once, and each of them begins soon. So no call is made that can be spared.
        for gpu in self._setter.limited_gpus(pod) or self._gpus:
            container = Target(gpu, pod, leaf)
            if self._setter.has_set(container):
                # The agent was faster, and knows more: the container may have a share of its own, or none.
                continue
            limit = self._setter.get(Target(gpu, pod)).hard
            # A pod without a share has none. The agent sets it before a container with a share starts.
            if limit is not None and self._setter.get(container).hard != limit:
                self._setter.set(container, limit)


def _containers(root: PodsRoot) -> set[tuple[str, str]]:
    """UID of the pod and name of the cgroup of every container."""
    return {(pod, leaf) for pod, directory in root.pods().items() for leaf in leaves(directory)}
