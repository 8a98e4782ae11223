"""A controller as its own chart installs it, but as a process: its API server calls its webhooks on the loopback."""

import base64
import http.client
import json
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import yaml

from standin.ports import free_port
from tests.e2e.cluster import WAIT_S, pki
from tests.e2e.cluster.manifests import Json
from tests.e2e.cluster.processes import Process
from tests.e2e.scheduler.control_plane import ControlPlane

CRD = "CustomResourceDefinition"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
PROBE_LABEL = "gpuagent.test/probe"
_SETTINGS = "controller_manager_config.yaml"
_MAKE_PODS = ("job", "statefulset", "garbage-collector")


class Controller:
    """Kueue, JobSet or LeaderWorkerSet.

    Args:
        control_plane: which it belongs to.
        name: of its binary, and of the file with what its chart installs.
        settings: added to those of its chart.
    """

    def __init__(self, control_plane: ControlPlane, name: str, settings: Json | None = None) -> None:
        self._control_plane = control_plane
        self._directory = control_plane.workdir / name
        self._directory.mkdir(exist_ok=True)
        self._webhook_port = free_port()
        self._ca = base64.b64encode(control_plane.certificates.ca.read_bytes()).decode()
        text = (control_plane.bin / f"{name}.yaml").read_text()
        # The same as `safe_load_all`, for 25,000 lines in one second instead of ten.
        self._objects: list[Json] = [made for made in yaml.load_all(text, yaml.CSafeLoader) if made]
        config = self._configuration(settings or {})
        command = (str(control_plane.bin / name), f"--config={config}", "--zap-log-level=info")
        kubeconfig = f"--kubeconfig={control_plane.kubeconfig(pki.ADMIN)}"
        self.process = control_plane.process(name, (*self._with_certificate_of_metrics(), *command, kubeconfig))

    def start(self) -> None:
        """Install what its chart does, and wait until its webhooks answer."""
        definitions = [made for made in self._objects if made["kind"] == CRD]
        for definition in definitions:
            self._lead_to_loopback(definition["spec"].get("conversion", {}).get("webhook"))
        define_kinds(self._control_plane, definitions)
        self.process.start()
        self.process.wait_for(self._serves_webhooks)
        for configuration in self._webhook_configurations():
            for webhook in configuration["webhooks"]:
                self._lead_to_loopback(webhook)
            probe = _probe(configuration)
            configuration["webhooks"].append(self._refusing(probe))
            _create(self._control_plane, configuration)
            self._wait_until_called(probe, called=True)

    def stop(self) -> None:
        """Nobody answers its webhooks from now on, so they go first. Its kinds stay until the control plane ends."""
        for configuration in self._webhook_configurations():
            self._control_plane.client.request("DELETE", self._control_plane.client.path_of(configuration))
            self._wait_until_called(_probe(configuration), called=False)
        self.process.kill()

    def _refusing(self, labels: Mapping[str, str]) -> Json:
        """A webhook at which nobody answers, so that it refuses ConfigMaps with these labels."""
        return {
            "name": "probe.gpuagent.test",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"url": f"https://127.0.0.1:{free_port()}"},
            "objectSelector": {"matchLabels": labels},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
            ],
        }

    def _wait_until_called(self, labels: Mapping[str, str], *, called: bool) -> None:
        """The API server sees a configuration of webhooks, or its end, after a moment, and all of its webhooks at once.

        Args:
            labels: which its refusing webhook refuses.
            called: whether the configuration was created; else it was deleted.
        """
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "labels": labels}}
        path = "/api/v1/namespaces/default/configmaps?dryRun=All"
        deadline = time.monotonic() + WAIT_S
        while (self._control_plane.client.request("POST", path, config_map)[0] != http.client.CREATED) != called:
            assert time.monotonic() < deadline, f"the API server does not see the webhooks of {self.process.name}"
            time.sleep(0.05)

    def _webhook_configurations(self) -> Iterator[Json]:
        for made in self._objects:
            if made["kind"] in WEBHOOKS:
                # They are in no namespace, although a chart may say so.
                made["metadata"].pop("namespace", None)
                yield made

    def _lead_to_loopback(self, webhook: Json | None) -> None:
        """There is no network of Services here."""
        if webhook is not None:
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://127.0.0.1:{self._webhook_port}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": self._ca}

    def _serves_webhooks(self) -> bool:
        try:
            with closing(socket.create_connection(("127.0.0.1", self._webhook_port), timeout=2)):
                return True
        except OSError:
            return False

    def _configuration(self, settings: Json) -> Path:
        """That of its chart, with ports of its own, and with certificates of ours."""
        (config_map,) = (made for made in self._objects if _SETTINGS in made.get("data", {}))
        config = yaml.safe_load(config_map["data"][_SETTINGS])
        config |= {
            "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
            "metrics": {"bindAddress": "0"},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": self._webhook_port, "certDir": str(self._certificates())},
        }
        config |= settings
        path = self._directory / "config.json"
        path.write_text(json.dumps(config, indent=2))
        return path

    def _certificates(self) -> Path:
        for kind in ("crt", "key"):
            source = self._control_plane.certificates.directory / f"server.{kind}"
            shutil.copy(source, self._directory / f"tls.{kind}")
        return self._directory

    def _with_certificate_of_metrics(self) -> Sequence[str]:
        """Kueue reads a certificate in /etc/kueue, even if nobody may read its metrics. So it has an /etc of its own."""
        script = (
            "mount -t tmpfs etc /etc && mkdir -p /etc/kueue/metrics/certs "
            '&& cp "$0"/tls.* /etc/kueue/metrics/certs && exec "$@"'
        )
        return ("unshare", "--mount", "sh", "-c", script, str(self._directory))


def define_kinds(control_plane: ControlPlane, definitions: Sequence[Json]) -> None:
    """Create kinds, unless an earlier test has, and wait until clients find them."""
    for definition in definitions:
        _create(control_plane, definition)
    for definition in definitions:
        control_plane.client.wait(CRDS, definition["metadata"]["name"], _is_established)
    kinds = {kind for definition in definitions for kind in _served_kinds(definition["spec"])}
    deadline = time.monotonic() + WAIT_S
    # Clients find a kind a moment after it is established, and a controller ends if it finds its own kinds not.
    while missing := kinds - control_plane.client.served():
        assert time.monotonic() < deadline, f"the API server does not show {missing}"
        time.sleep(0.05)


def remove_kinds(control_plane: ControlPlane, definitions: Sequence[Json]) -> None:
    """Delete kinds, and wait until they are gone.

    The API server first deletes the objects of a kind. If that fails, as it does while the storage of its group is set
    up again, a second try that is too fast for the server's own cache is its last one, until the kind changes.
    """
    for definition in definitions:
        control_plane.client.request("DELETE", f"{CRDS}/{definition['metadata']['name']}")
    deadline = time.monotonic() + WAIT_S
    for definition in definitions:
        name = definition["metadata"]["name"]
        while not _is_removed(control_plane, name):
            assert time.monotonic() < deadline, f"the API server does not remove {name}"
            changed = {"metadata": {"annotations": {"gpuagent.test/changed": str(time.time())}}}
            control_plane.client.request("PATCH", f"{CRDS}/{name}", changed, "application/merge-patch+json")


def _is_removed(control_plane: ControlPlane, name: str) -> bool:
    """Whether a kind is gone within some seconds."""
    try:
        control_plane.client.wait(CRDS, name, lambda found: found is None, timeout=3.0)
    except TimeoutError:
        return False
    return True


def kubernetes_controllers(control_plane: ControlPlane, names: Iterable[str] = _MAKE_PODS) -> Process:
    """Controllers of Kubernetes: those that make pods of Jobs and StatefulSets, and collect garbage, or others."""
    return control_plane.process(
        "kube-controller-manager",
        (
            str(control_plane.bin / "kube-controller-manager"),
            f"--kubeconfig={control_plane.kubeconfig('system:kube-controller-manager')}",
            f"--controllers={','.join(f'{name}-controller' for name in names)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={control_plane.workdir / 'controller-certificates'}",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ),
    )


def _served_kinds(spec: Json) -> Iterator[tuple[str, str, str]]:
    """Group, version and plural of a kind, in each version in which it is served."""
    for version in spec["versions"]:
        if version["served"]:
            yield spec["group"], version["name"], spec["names"]["plural"]


def _probe(configuration: Json) -> Mapping[str, str]:
    """Labels of the ConfigMaps that this configuration alone refuses."""
    return {PROBE_LABEL: configuration["metadata"]["name"]}


def _create(control_plane: ControlPlane, made: Json) -> None:
    """Create an object of the cluster, unless an earlier test has."""
    path = control_plane.client.path_of(made).rpartition("/")[0]
    status, answer = control_plane.client.request("POST", path, made)
    assert status in (http.client.CREATED, http.client.CONFLICT), answer


def _is_established(definition: Json | None) -> bool:
    status = (definition or {}).get("status", {})
    conditions: Iterable[Json] = status.get("conditions") or ()
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
