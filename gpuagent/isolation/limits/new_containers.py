"""Tells of the cgroups of pods and containers as they appear."""

import logging
from collections.abc import Callable

from gpuagent.host.cgroup_watch import CgroupWatch
from gpuagent.isolation.limits.pods import PodLimits
from gpuagent.isolation.limits.warned import Warned
from gpuagent.system.inotify import ADVICE
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)


class NewContainers:
    """A watch of the pods below one cgroup, which can be started again if it could not be started.

    Args:
        pods: of the node.
        warned: which pods the log has warned of.
        appeared: called in the thread of the watch with the UID of a pod and the name of a container's cgroup, which is
            empty if the cgroup is the pod's own.
        missed: called if some may have appeared without a call.

    Attributes:
        problem: why nothing is watched, and what to do; None if it is, and before the start.
    """

    def __init__(
        self,
        pods: PodLimits,
        warned: Warned,
        appeared: Callable[[str, str], None],
        missed: Callable[[], None],
    ) -> None:
        self.problem: str | None = None
        self._pods = pods
        self._warned = warned
        self._appeared = appeared
        self._missed = missed
        self._watch: CgroupWatch | None = None

    def start(self) -> None:
        """Begin to watch, unless that has begun already. A failure is the `problem`."""
        if self._watch is not None:
            return
        watch: CgroupWatch | None = None
        try:
            watch = CgroupWatch(self._appeared, self._missed)
            watch.start()
            # Kubelet asks about containers with a share only, and others of their pods may start before. On backend
            # misc, a container of any pod may be born with the limit of a dead one.
            watch.add_pods_of(self._pods.root)
        except OSError as err:
            advice = ADVICE.get(err.errno or 0, "look at the node's cgroups")
            self.problem = f"new containers cannot be watched ({error_words(err)}): {advice}"
            if watch is not None:
                watch.stop()
            return
        self.problem = None
        self._watch = watch

    def stop(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.stop()

    def follow(self, uid: str) -> None:
        """Tell of the next containers of this pod as well."""
        directory = self._pods.directory(uid)
        if directory is None or self._watch is None:
            return
        try:
            self._watch.add(uid, directory)
        except FileNotFoundError:
            return  # the pod has just ended
        except OSError as err:
            if self._warned.is_first(uid, "watch"):
                log.warning("Failed to watch the containers of a pod", extra={"pod_uid": uid, "error": str(err)})
