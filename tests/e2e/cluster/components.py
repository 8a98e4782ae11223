"""The components of one cluster as processes."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import OK

from .api_client import ApiClient
from .component_settings import ComponentSettings, KubeletKind
from .host import RECORDS
from .processes import Process
from .runtime import Ctr
from .waiting import WAIT_S


@dataclass(frozen=True)
class Components:
    """All of them; none is started by being made."""

    settings: ComponentSettings
    client: ApiClient
    ctr: Ctr
    etcd: Process
    apiserver: Process
    controllers: Process
    scheduler: Process
    containerd: Process
    kubelets: dict[KubeletKind, Process] = field(default_factory=dict)
    """Those that were asked for so far."""

    @classmethod
    def create(cls, settings: ComponentSettings, client: ApiClient) -> "Components":
        return cls(
            settings,
            client,
            Ctr(settings.bin / "ctr", settings.containerd_socket),
            etcd=_process(settings, "etcd", settings.etcd()),
            apiserver=_process(settings, "kube-apiserver", settings.apiserver()),
            controllers=_process(settings, "kube-controller-manager", settings.controller_manager()),
            scheduler=_process(settings, "kube-scheduler", settings.scheduler()),
            containerd=_process(settings, "containerd", settings.containerd()),
        )

    def kubelet(self, kind: KubeletKind) -> Process:
        if kind not in self.kubelets:
            self.kubelets[kind] = _process(self.settings, f"kubelet-{kind.name}", self.settings.kubelet(kind))
        return self.kubelets[kind]

    def start_all_but_kubelet(self) -> None:
        self.containerd.start()
        self.etcd.start()
        self.start_apiserver()
        self.controllers.start()
        self.scheduler.start()
        self.containerd.wait_for(self.ctr.answers)
        self.ctr.import_images(self.settings.images)

    def start_apiserver(self, timeout: float = WAIT_S) -> None:
        self.apiserver.start()
        self.apiserver.wait_for(self._apiserver_ready, timeout)

    def set_control_plane_flags(self, flags: Sequence[str]) -> None:
        """Further flags of each component of the control plane, from its next start on."""
        for process in (self.apiserver, self.controllers, self.scheduler):
            process.flags = tuple(flags)

    def restart_runtime_without_containers(self) -> None:
        """It finds none of its containers running: of those that end while it looks away it would not know at once."""
        self.ctr.remove_all()
        self.containerd.stop()
        self.containerd.start()
        self.containerd.wait_for(self.ctr.answers)

    def restart_apiserver_clients(self) -> None:
        """After an outage both would wait for up to half a minute before they look again.

        And the scheduler gives up for good when a pod was replaced by one of the same name in the meantime.
        """
        for process in (self.controllers, self.scheduler):
            process.kill()
            process.start()

    def ended(self) -> list[str]:
        processes = (self.etcd, self.apiserver, self.controllers, self.scheduler, self.containerd)
        return [f"{process.name} has ended\n{process.log_tail()}" for process in processes if not process.running]

    def _apiserver_ready(self) -> bool:
        try:
            return self.client.request("GET", "/readyz", timeout=2)[0] == OK
        except OSError:
            return False

    def stop_all(self) -> None:
        """Nothing is kept, so nothing needs an orderly end but the containers, whose shims outlive containerd."""
        for process in (*self.kubelets.values(), self.scheduler, self.controllers, self.apiserver, self.etcd):
            process.kill()
        if self.containerd.running:
            self.ctr.remove_all()
        self.containerd.stop()
        for bulk in ("etcd", "containerd"):
            shutil.rmtree(self.settings.workdir / bulk, ignore_errors=True)


def _process(settings: ComponentSettings, name: str, command: Sequence[str]) -> Process:
    logs = settings.workdir / "logs"
    logs.mkdir(exist_ok=True)
    return Process(name, command, logs / f"{name}.log", RECORDS)
