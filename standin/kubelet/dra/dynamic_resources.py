"""The parts of kubelet's DRA half, put together."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from standin.api.refusal import Refusal
from standin.kubelet.dra.claim_infos import ClaimInfos
from standin.kubelet.dra.claims import Claims
from standin.kubelet.dra.driver import DriverCall
from standin.kubelet.dra.health import DeviceHealths
from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.pod_workers import Admits, Cluster, PodWorkers, Runtime
from standin.kubelet.dra.registry import DriverRegistry
from standin.kubelet.personality import Personality
from standin.kubelet.pods import Granted


class DynamicResources:
    """Starts and stops with its kubelet.

    Args:
        root: stands for ``/var/lib/kubelet``.
        api: with the pods, their claims, and the slices.
        kubelet: admits the pods.
        personality: which services of drivers this kubelet supports.
        periods: how long it waits.
        rng: of the jitter.
        runtime: has the containers of a former process of this kubelet; None for none.
        every_pod: whether it also runs pods without claims.
    """

    def __init__(
        self,
        root: Path,
        api: Cluster,
        kubelet: Admits,
        personality: Personality,
        periods: Periods,
        rng: random.Random,
        *,
        runtime: Runtime | None = None,
        every_pod: bool = False,
    ) -> None:
        self.cdi_dir = root / "cdi"
        self._root, self._api, self._kubelet, self._personality = root, api, kubelet, personality
        self.periods, self._rng = periods, rng
        self.runtime = runtime or Runtime(self.cdi_dir)
        self._every_pod = every_pod
        self._parts: tuple[DriverRegistry, Claims, PodWorkers, DeviceHealths] | None = None
        self._calls: list[DriverCall] = []
        self._stopping = threading.Event()
        self._reconciling: threading.Thread | None = None

    def start(self) -> None:
        """Start from the checkpoint."""
        self._stopping.clear()
        healths = DeviceHealths(self.periods)
        folder = self._root / "plugins_registry"
        registry = DriverRegistry(
            folder,
            self._personality.dra_services,
            self.periods,
            self._wipe,
            healths.follow,
            self._personality.dra_health_services,
        )
        claims = Claims(self._api.objects, registry, ClaimInfos(self._root), healths, self.periods)
        claims.calls = self._calls
        workers = PodWorkers(
            self._api, self._kubelet, claims, self.runtime, self.periods, self._rng, every_pod=self._every_pod
        )
        healths.changed = lambda driver, devices: workers.wake(claims.pods_with(driver, devices))
        self._parts = registry, claims, workers, healths
        registry.start()
        workers.start()
        self._reconciling = threading.Thread(target=self._reconcile, name="standin-reconcile", daemon=True)
        self._reconciling.start()

    def stop(self) -> None:
        """End as a killed process does: calls are dropped; checkpoint, sandboxes and containers stay."""
        if self._parts is None or self._reconciling is None:
            return
        registry, _, workers, healths = self._parts
        self._parts = None
        self._stopping.set()
        registry.stop()
        workers.stop()
        healths.join()
        self._reconciling.join()

    def lose_containers(self) -> None:
        """A reboot, with kubelet stopped: no container is left, and the folder of CDI specifications is empty."""
        self.runtime.sandboxes.clear()
        self.runtime.containers.clear()
        for path in self.cdi_dir.glob("*"):
            # A driver may remove the specification of a claim at this moment.
            path.unlink(missing_ok=True)

    def exit(self, uid: str) -> None:
        """The containers of the pod end by themselves."""
        self.runtime.exited.add(uid)

    def containers(self) -> dict[tuple[str, str], Granted]:
        """What each running container got, by UID of the pod and name of the container."""
        return dict(self.runtime.containers)

    def watch_starts(self, started: Callable[[str], None]) -> None:
        """Have this called with the UID of the pod after each start of a container, by the thread that started it."""
        self.runtime.started = started

    def container(self, uid: str, name: str) -> Granted | None:
        """A container's grant; None if it does not run."""
        return self.runtime.containers.get((uid, name))

    @property
    def calls(self) -> list[DriverCall]:
        """Every call to a driver about claims that has ended, over all restarts."""
        return list(self._calls)

    @property
    def registrations(self) -> list[tuple[str, str]]:
        """Every attempt of this kubelet to register a driver: name of the socket, and why it failed, or empty."""
        return list(self._parts[0].registrations) if self._parts else []

    def instances(self, driver: str) -> list[str]:
        """Endpoints of the driver's registered instances, the newest last."""
        return self._parts[0].instances(driver) if self._parts else []

    def _reconcile(self) -> None:
        while not self._stopping.wait(self.periods.reconcile):
            if self._parts:
                _, claims, workers, _ = self._parts
                claims.reconcile(workers.active())

    def _wipe(self, driver: str) -> None:
        """Delete the node's ResourceSlices, of one driver or of all."""
        for one in self._api.objects.all("resourceslices")[0]:
            spec = one["spec"]
            if spec.get("nodeName") == self._api.node_name and driver in ("", spec["driver"]):
                with suppress(Refusal):
                    self._api.objects.delete(("resourceslices", "", one["metadata"]["name"]))
