"""Reports cgroups of pods and containers as they appear: one inotify descriptor for all pods of the node."""

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuagent.host.cgroups import CRUN_CHILD, PodsRoot, container_id
from gpuagent.system.inotify import ADVICE, IN_CREATE, IN_IGNORED, IN_ONESHOT, IN_ONLYDIR, IN_Q_OVERFLOW, Inotify

log = logging.getLogger(__name__)

STOP_S = 1.0

Appeared = Callable[[str, str], None]
"""Receives the pod's UID, and the name of a container's cgroup in the pod's; an empty name is the pod's cgroup."""


@dataclass(frozen=True, slots=True)
class _PodWatch:
    """A pod's cgroup, in which containers' appear."""

    pod: str
    directory: Path


@dataclass(frozen=True, slots=True)
class _LeafWatch:
    """A container's cgroup, in which crun makes a child."""

    pod: str
    leaf: str
    directory: Path


@dataclass(frozen=True, slots=True)
class _ClassWatch:
    """A directory in which the pods of a quality-of-service class appear."""

    root: PodsRoot
    qos: str
    directory: Path


_Watch = _PodWatch | _LeafWatch | _ClassWatch


class CgroupWatch:
    """Watches the pods that `add` names, and all of the node's pods after `add_pods_of`.

    What exists already is reported as well, and a name may be reported twice. Both functions are called in the watch's
    own thread.

    Args:
        appeared: receives each cgroup. It is called within a millisecond, before the container's first instruction.
        rescan: called if the kernel has lost events. The watch itself reads its directories again; the caller should
            look for whatever else it relies on.
        name: the thread's.

    Raises:
        OSError: the node has no inotify instance left.
    """

    def __init__(self, appeared: Appeared, rescan: Callable[[], None], *, name: str = "cgroup-watch") -> None:
        self._appeared = appeared
        self._rescan = rescan
        self._inotify = Inotify()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Also held while a kernel watch is added: the thread must not read an event before it can look up its watch.
        self._lock = threading.Lock()
        self._watches: dict[int, _Watch] = {}
        self._numbers: dict[str, int] = {}
        self._unread: deque[_Watch] = deque()
        self._stopping = False
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch; harmless if it was never started. Call it once."""
        self._stopping = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                return  # a caller's function hangs, and the thread still needs the descriptors
        self._inotify.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def add(self, pod: str, directory: Path) -> None:
        """Report the containers of a pod. Harmless if it is watched already.

        Raises:
            OSError: the pod's cgroup has gone, or the node has no inotify watch left.
        """
        self._add(_PodWatch(pod, directory))
        self._wake()

    def remove(self, pod: str) -> None:
        """Do not report containers of this pod any more. Not needed for a pod that has ended."""
        with self._lock:
            number = self._numbers.pop(pod, None)
            if number is None:
                return
            # Both may still be read: what has happened so far, and the directory itself.
            removed = self._watches.pop(number, None)
            self._unread = deque(watch for watch in self._unread if watch != removed)
            self._inotify.remove(number)

    def add_pods_of(self, root: PodsRoot) -> None:
        """Report the cgroup of every pod of the node. Call it again after `rescan`: a class may have a new directory.

        Raises:
            OSError: the pods root has gone, or the node has no inotify watch left.
        """
        for qos, directory in root.class_directories():
            is_optional = bool(qos)
            try:
                self._add(_ClassWatch(root, qos, directory))
            except FileNotFoundError:
                if not is_optional:
                    raise
        self._wake()

    @property
    def pods(self) -> frozenset[str]:
        """UIDs of the pods whose containers are reported."""
        with self._lock:
            return frozenset(self._numbers)

    def _add(self, watch: _Watch, mask: int = 0) -> None:
        with self._lock:
            number = self._inotify.add(watch.directory, IN_CREATE | IN_ONLYDIR | mask)
            # The kernel has the same number for a directory that is watched already.
            is_watched = number in self._watches
            self._watches[number] = watch
            if isinstance(watch, _PodWatch):
                self._numbers[watch.pod] = number
            if not is_watched:
                # Its directory is read in the thread: what appeared before the watch has no event.
                self._unread.append(watch)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is woken already
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        descriptors = [self._inotify.descriptor, self._wake_read]
        while not self._stopping:
            ready, _, _ = select.select(descriptors, [], [])
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            self._read_events()
            self._read_directories()

    def _read_events(self) -> None:
        for event in self._inotify.read():
            if self._stopping:
                return
            if event.mask & IN_Q_OVERFLOW:
                self._lost_events()
            elif event.mask & IN_IGNORED:
                self._forget(event.watch)
            else:
                with self._lock:
                    watch = self._watches.get(event.watch)
                if watch:
                    self._saw(watch, event.name)

    def _lost_events(self) -> None:
        log.warning("Lost events of cgroups; every watched cgroup is read again")
        with self._lock:
            self._unread.extend(self._watches.values())
        self._call(self._rescan)

    def _forget(self, number: int) -> None:
        """The directory has gone, or its only event has come."""
        with self._lock:
            watch = self._watches.pop(number, None)
            if isinstance(watch, _PodWatch) and self._numbers.get(watch.pod) == number:
                del self._numbers[watch.pod]

    def _read_directories(self) -> None:
        while not self._stopping:
            with self._lock:
                if not self._unread:
                    return
                watch = self._unread.popleft()
            try:
                paths = list(watch.directory.iterdir())
            except OSError:
                continue  # it has gone
            for path in paths:
                self._saw(watch, path.name)

    def _saw(self, watch: _Watch, name: str) -> None:
        match watch:
            case _PodWatch():
                self._saw_in_pod(watch, name)
            case _LeafWatch() if name == CRUN_CHILD:
                self._report(watch.pod, f"{watch.leaf}/{CRUN_CHILD}")
            case _ClassWatch():
                self._saw_in_class(watch, name)

    def _saw_in_pod(self, watch: _PodWatch, name: str) -> None:
        if container_id(name) is None:
            return
        self._report(watch.pod, name)
        # The first thing that crun makes there is the child. One event suffices, so that a container that may make
        # cgroups of its own cannot keep this thread busy.
        self._try_to_add(_LeafWatch(watch.pod, name, watch.directory / name), IN_ONESHOT)

    def _saw_in_class(self, watch: _ClassWatch, name: str) -> None:
        pod = watch.root.pod_in(watch.qos, name)
        if pod:
            self._report(pod, "")
            return
        for qos, directory in watch.root.class_directories():
            # Kubelet makes the directory of a class when it starts.
            if qos and not watch.qos and directory.name == name:
                self._try_to_add(_ClassWatch(watch.root, qos, directory))

    def _try_to_add(self, watch: _Watch, mask: int = 0) -> None:
        try:
            self._add(watch, mask)
        except OSError as err:
            advice = ADVICE.get(err.errno or 0)
            if advice and not self._has_warned:
                self._has_warned = True
                fields = {"directory": str(watch.directory), "error": err, "advice": advice}
                log.warning("Failed to watch a cgroup", extra=fields)

    def _report(self, pod: str, leaf: str) -> None:
        self._call(lambda: self._appeared(pod, leaf))

    def _call(self, function: Callable[[], None]) -> None:
        # A caller's error about one pod must not end the watch of all others.
        try:
            function()
        except Exception:
            log.exception("Failed to handle an event of a cgroup")
