"""The components of one cluster as processes."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import OK

from tests.e2e.build import KUBERNETES

from .api_client import ApiClient
from .component_settings import NO_POLICY, ComponentSettings
from .host import RECORDS
from .processes import Process
from .runtime import Ctr
from .waiting import WAIT_S

KUBELET_VERSIONS = (KUBERNETES, "1.30")
TOPOLOGY_POLICIES = (NO_POLICY, "best-effort", "single-numa-node")


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
    kubelets: Mapping[tuple[str, str], Process]
    """By version and Topology Manager policy."""

    @classmethod
    def create(cls, settings: ComponentSettings, client: ApiClient) -> "Components":
        logs = settings.workdir / "logs"
        logs.mkdir(exist_ok=True)

        def process(name: str, command: Sequence[str]) -> Process:
            return Process(name, command, logs / f"{name}.log", RECORDS)

        return cls(
            settings,
            client,
            Ctr(settings.bin / "ctr", settings.containerd_socket),
            etcd=process("etcd", settings.etcd()),
            apiserver=process("kube-apiserver", settings.apiserver()),
            controllers=process("kube-controller-manager", settings.controller_manager()),
            scheduler=process("kube-scheduler", settings.scheduler()),
            containerd=process("containerd", settings.containerd()),
            kubelets={
                (version, policy): process(f"kubelet-{version}-{policy}", settings.kubelet(version, policy))
                for version in KUBELET_VERSIONS
                for policy in TOPOLOGY_POLICIES
            },
        )

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
