"""Kubelet's plugin watcher and its list of DRA drivers: who registered, who is reachable, whose slices have to go."""

import stat
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

from gpuagent._pb import pluginregistration_v1_pb2 as pb
from standin.kubelet.connection import CallError
from standin.kubelet.dra.driver import Driver, listens, open_channel, unary
from standin.kubelet.dra.periods import Periods

_SERVICE = "/pluginregistration.Registration"
_LONGEST_S = 122.0
_Identity = tuple[int, int]


class DriverRegistry:
    """Looks at the folder of registrations from `start` to `stop`.

    Args:
        folder: ``plugins_registry``.
        services: of drivers that this kubelet supports.
        wipe: deletes the node's slices of a driver, or ("") of all drivers.
        follow: called with each new instance.
        health_services: of which a driver has to name one; without any, it needs to name none.
    """

    def __init__(
        self,
        folder: Path,
        services: Collection[str],
        periods: Periods,
        wipe: Callable[[str], None],
        follow: Callable[[Driver], None],
        health_services: Collection[str] = (),
    ) -> None:
        self._health_services = health_services
        self._folder, self._services, self._periods = folder, services, periods
        self._wipe, self._follow = wipe, follow
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="standin-plugins", daemon=True)
        self._registered: dict[Path, tuple[_Identity, Driver]] = {}
        self._drivers: list[Driver] = []
        self._busy: dict[Path, threading.Thread] = {}
        self._tries: dict[Path, tuple[float, float]] = {}
        self._unreachable: dict[str, float] = {}
        self.registrations: list[tuple[str, str]] = []
        """Every attempt: name of the registration socket, and why it failed, or empty."""

    def start(self) -> None:
        """Wipe all slices: no driver has registered yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._wipe("")
        self._thread.start()

    def stop(self) -> None:
        """Drop all connections, and every call on them."""
        self._stopping.set()
        self._close_all()
        self._thread.join()
        for thread in list(self._busy.values()):
            thread.join()
        self._close_all()  # one may have registered meanwhile

    def _close_all(self) -> None:
        with self._lock:
            for driver in self._drivers:
                driver.close()

    def get(self, name: str) -> Driver:
        """The instance to call: the newest one that is connected, else the newest. Raises CallError."""
        with self._lock:
            found = [one for one in self._drivers if one.name == name]
        if not found:
            raise CallError(f"DRA driver {name} is not registered")
        return next((one for one in reversed(found) if one.connected), found[-1])

    def instances(self, name: str) -> list[str]:
        """Endpoints of the driver's instances, the newest last."""
        with self._lock:
            return [str(one.endpoint) for one in self._drivers if one.name == name]

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._look()
            self._wipe_unreachable()
            self._stopping.wait(self._periods.registry)

    def _look(self) -> None:
        found = _sockets(self._folder)
        with self._lock:
            gone = [path for path, (identity, _) in self._registered.items() if found.get(path) != identity]
        for path in gone:
            self._deregister(path)
        now = time.monotonic()
        for path, identity in found.items():
            due, _ = self._tries.get(path, (0.0, 0.0))
            if path not in self._registered and path not in self._busy and now >= due:
                thread = threading.Thread(target=self._try, args=(path, identity), name="standin-register", daemon=True)
                self._busy[path] = thread
                thread.start()

    def _try(self, path: Path, identity: _Identity) -> None:
        problem = ""
        try:
            self._register(path, identity)
        except CallError as error:
            problem = str(error)
        _, last_s = self._tries.pop(path, (0.0, 0.0))
        if problem:
            wait_s = min(last_s * 2 or self._periods.registration, _LONGEST_S)
            self._tries[path] = (time.monotonic() + wait_s, wait_s)
        self.registrations.append((path.name, problem))
        del self._busy[path]

    def _register(self, path: Path, identity: _Identity) -> None:
        end = time.monotonic() + self._periods.dial
        while not listens(path):
            if time.monotonic() > end or self._stopping.wait(0.02):
                raise CallError(f"dial failed at socket {path}: context deadline exceeded")
        with closing(open_channel(path)) as channel:

            def call(method: str, request: Any, answers: Any, timeout: float) -> Any:  # noqa: ANN401 - two messages
                return unary(channel, f"{_SERVICE}/{method}", request, answers, timeout)

            def notify(problem: str) -> None:
                status = pb.RegistrationStatus(plugin_registered=not problem, error=problem)
                call("NotifyRegistrationStatus", status, pb.RegistrationStatusResponse, self._periods.notify)
                if problem:
                    raise CallError(problem)

            info: pb.PluginInfo = call("GetInfo", pb.InfoRequest(), pb.PluginInfo, self._periods.info)
            if info.type != "DRAPlugin":
                notify(f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at socket {path}")
            service = next((one for one in info.supported_versions if one in self._services), "")
            endpoint = Path(info.endpoint or path)
            if not service:
                ours = f"none of services supported by the plugin ({list(info.supported_versions)}) are supported"
                notify(f"RegisterPlugin error -- plugin validation failed with err: {ours} by the kubelet")
            if str(endpoint) in self.instances(info.name):
                taken = f"endpoint {endpoint} already registered for DRA driver plugin {info.name}"
                notify(f"RegisterPlugin error -- plugin registration failed with err: {taken}")
            driver = Driver(info.name, endpoint, service, self._health_service(info))
            with self._lock:
                self._drivers.append(driver)
                self._registered[path] = (identity, driver)
            self._follow(driver)
            try:
                notify("")
            except CallError:
                self._deregister(path)
                raise

    def _health_service(self, info: pb.PluginInfo) -> str:
        if not self._health_services:
            return "v1alpha1.DRAResourceHealth"
        return next((name for name in self._health_services if name in info.supported_versions), "")

    def _deregister(self, path: Path) -> None:
        with self._lock:
            registered = self._registered.pop(path, None)
            if registered is None:
                # Its socket has gone while it was told that it is registered: both are reasons.
                return
            _, driver = registered
            self._drivers.remove(driver)
            self._unreachable.setdefault(driver.name, time.monotonic())
        driver.close()

    def _wipe_unreachable(self) -> None:
        """Delete the slices of drivers that have been away for too long, once."""
        with self._lock:
            drivers = list(self._drivers)
        reachable = {one.name for one in drivers if one.connected}
        for name in {one.name for one in drivers} - reachable:
            self._unreachable.setdefault(name, time.monotonic())
        for name, since in list(self._unreachable.items()):
            if name in reachable:
                del self._unreachable[name]
            elif time.monotonic() >= since + self._periods.wipe:
                self._unreachable[name] = float("inf")
                self._wipe(name)


def _sockets(folder: Path) -> dict[Path, _Identity]:
    """Sockets below the folder, hidden ones left out; a socket made again is another one."""
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            about = path.stat()
        except OSError:
            continue
        if stat.S_ISSOCK(about.st_mode) and not path.name.startswith("."):
            found[path] = (about.st_ino, about.st_mtime_ns)
    return found
