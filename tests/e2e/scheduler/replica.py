"""A kube-scheduler with its extender, as a pod of the Deployment runs them."""

import http.client
import json
import ssl
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeVar

from standin.ports import free_port
from tests.e2e.cluster import WAIT_S, pki
from tests.e2e.cluster.manifests import Json
from tests.e2e.cluster.processes import Process
from tests.e2e.scheduler.breakable_connection import BreakableConnection
from tests.e2e.scheduler.control_plane import LEASE
from tests.e2e.scheduler.pods import SCHEDULER_NAME

_RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu")
# A kube-scheduler that loses its lease ends. One that is alone has no reason to, however busy the machine is.
LEASE_OF_ONE = {"leaseDuration": "600s", "renewDeadline": "500s", "retryPeriod": "1s"}
# Short, so that another leads soon. The tests start the one that has lost its lease again, as kubelet does.
_LEASE_OF_SEVERAL = {"leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s"}
CALL_LIMIT = "30s"
"""How long a call to the extender may take."""
PROGRAM = ("-m", "gpuscheduler")
"""Python's arguments for the extender."""

Result = TypeVar("Result")


class Plane(Protocol):
    """A control plane, on nodes of kwok or of kubelet."""

    @property
    def workdir(self) -> Path: ...

    @property
    def bin(self) -> Path: ...

    @property
    def address(self) -> tuple[str, int]:
        """Of the API server."""

    def kubeconfig(self, user: str) -> Path: ...

    def process(self, name: str, command: Iterable[str]) -> Process: ...


class Replica:
    """Both processes, and the extender's connection to the API server, which tests can break.

    Args:
        control_plane: which both belong to.
        name: the host name of both.
        flags: further flags of the extender.
        extends: whether kube-scheduler calls the extender.
        alone: whether no other replica ever takes over from it. If not, wait with `revived_while`.
        certificates: folder with those of the documentation, by which the extender recognizes kube-scheduler.
        scheduler_flags: further flags of kube-scheduler.
        scores: the verb by which the extender also scores nodes, `prioritize` or `prioritize-claims`; empty for none.
        program: Python's arguments for the extender, before its own.

    Attributes:
        name: the host name of both.
        extender: the process under test.
        scheduler: kube-scheduler, which calls it.
        pages_port: of the extender's pages and probes.
        link: between the extender and the API server.
    """

    def __init__(
        self,
        control_plane: Plane,
        name: str,
        flags: Iterable[str] = (),
        *,
        extends: bool = True,
        alone: bool = True,
        certificates: Path | None = None,
        scheduler_flags: Iterable[str] = (),
        scores: str = "",
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._directory = control_plane.workdir / name
        self._directory.mkdir(exist_ok=True)
        self.link = BreakableConnection(control_plane.address)
        self.port = free_port()
        self.pages_port = free_port()
        address = f"127.0.0.1:{self.port}"
        kubeconfig = self._through_link(control_plane.kubeconfig(pki.GPU_SCHEDULER))
        extender = (
            *(sys.executable, *program, "run", "--kubeconfig", str(kubeconfig)),
            *("--listen", address, "--http-address", f"127.0.0.1:{self.pages_port}"),
            *("--lease", f"kube-system/{LEASE}"),
        )
        # A host name of its own, as a pod has, by which the lease names its holder.
        host = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name)
        self.name = name
        self.extender = control_plane.process(f"{name}-extender", (*host, *extender, *tls_flags(certificates), *flags))
        self._scheduler_port = free_port()
        config = self._configuration(
            control_plane.kubeconfig("system:kube-scheduler"),
            _extenders(address, certificates, scores=scores) if extends else [],
            LEASE_OF_ONE if alone else _LEASE_OF_SEVERAL,
        )
        self.scheduler = control_plane.process(
            f"{name}-scheduler",
            (
                *host,
                str(control_plane.bin / "kube-scheduler"),
                f"--config={config}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._scheduler_port}",
                f"--cert-dir={self._directory}",
                *scheduler_flags,
            ),
        )

    def start(self) -> None:
        """Start what does not run, and wait until both are ready."""
        self.revive()
        self.wait_for_extender()
        self.wait_for_scheduler()

    def wait_for_scheduler(self) -> None:
        """Wait until kube-scheduler answers probes, whether it leads or not."""
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # it signed its certificate itself
        port = self._scheduler_port
        self.scheduler.wait_for(
            lambda: _answers(http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=tls))
        )

    def wait_for_extender(self) -> None:
        """Wait until it answers calls."""
        self.extender.wait_for(lambda: _answers(http.client.HTTPConnection("127.0.0.1", self.pages_port, timeout=2)))

    def page(self, path: str) -> str:
        """A page of the extender, such as /usage."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.pages_port, timeout=WAIT_S)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        assert answer.status == http.client.OK, text
        return text

    def metric(self, series: str) -> float:
        """The value of a series, in full as its page shows it; 0 before there is one."""
        lines = self.page("/metrics").splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{series} ")), 0.0)

    def wait_for_holders(self, *names: str) -> None:
        """Wait until the extender knows that these pods hold GPUs, and no others: its watch may lag behind the test's."""
        expected = {f"default/{name}" for name in names}
        self.extender.wait_for(lambda: self.holders() == expected)

    def holders(self) -> set[str]:
        """The pods that hold GPUs or have some reserved, as the extender knows it."""
        nodes = json.loads(self.page("/usage"))["nodes"]
        return {pod for node in nodes for gpu in node["gpus"] for pod in (*gpu["pods"], *gpu["reserved"])}

    def revive(self) -> None:
        """Start what does not run, as kubelet does. kube-scheduler ends by itself when it loses the lease."""
        for process in (self.extender, self.scheduler):
            if not process.running:
                process.start()

    def kill(self) -> None:
        """Kill both, as a node that dies does."""
        self.scheduler.kill()
        self.extender.kill()

    def stop(self) -> None:
        """End both in order; kube-scheduler gives the lease back."""
        self.scheduler.stop()
        self.extender.stop()
        self.link.close()

    def _through_link(self, kubeconfig: Path) -> Path:
        config = json.loads(kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.link.port}"
        path = self._directory / "extender.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def _configuration(self, kubeconfig: Path, extenders: list[Json], lease: Mapping[str, str]) -> Path:
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            # With its default of 50 requests a second, that limit would be all that can be measured.
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
            "leaderElection": {"leaderElect": True, "resourceName": LEASE} | dict(lease),
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
            "profiles": [{"schedulerName": SCHEDULER_NAME}],
            "extenders": extenders,
        }
        path = self._directory / "scheduler.json"
        path.write_text(json.dumps(config, indent=2))
        return path


def tls_flags(certificates: Path | None) -> tuple[str, ...]:
    """Flags of the extender, for certificates in this folder; none without one."""
    if certificates is None:
        return ()
    return (
        *("--tls-cert-file", str(certificates / "server.crt")),
        *("--tls-private-key-file", str(certificates / "server.key")),
        *("--client-ca-file", str(certificates / "ca.crt")),
    )


def _extenders(address: str, certificates: Path | None, *, scores: str) -> list[Json]:
    """How kube-scheduler calls the extender."""
    reached: Json = {"urlPrefix": f"http://{address}", "nodeCacheCapable": True}
    if certificates:
        files = {"certFile": "caller.crt", "keyFile": "caller.key", "caFile": "ca.crt"}
        tls = {key: str(certificates / name) for key, name in files.items()}
        reached |= {"urlPrefix": f"https://{address}", "enableHTTPS": True, "tlsConfig": tls}
    of_gpu_pods = reached | {
        "filterVerb": "filter",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "ignorable": False,
        "httpTimeout": CALL_LIMIT,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in _RESOURCES],
    }
    # The chart has a second, after which kube-scheduler goes by its own scores. A busy machine is slower.
    of_all_pods = reached | {"prioritizeVerb": scores, "weight": 10, "ignorable": True, "httpTimeout": CALL_LIMIT}
    return [of_gpu_pods, of_all_pods] if scores else [of_gpu_pods]


def revived_while(replicas: Collection[Replica], wait: Callable[[float], Result]) -> Result:
    """Call `wait` with one second at a time, and start between the calls what has ended, as kubelet does.

    Args:
        replicas: not alone: a kube-scheduler that cannot renew its lease in time ends, on a busy machine any time.
        wait: raises TimeoutError after that many seconds.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        for replica in replicas:
            replica.revive()
        try:
            return wait(1.0)
        except TimeoutError:
            if time.monotonic() > deadline:
                raise


def _answers(connection: http.client.HTTPConnection) -> bool:
    with closing(connection):
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
