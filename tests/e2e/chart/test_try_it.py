"""docs/try-it.md: its commands, one after the other, with the chart as a release packages it.

kind and what builds images are left out. The cluster has no network for pods, so a policy puts every pod on the node's.
With `TRY_IT_CAST=FILE`, what was typed and printed is written there as a recording of asciinema.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent import __version__
from release.chart import package_chart
from tests.e2e.build import bin_dir
from tests.e2e.chart.kube_scheduler_image import kube_scheduler_archive
from tests.e2e.chart.recording import Recording
from tests.e2e.chart.release import HELM
from tests.e2e.cluster import WAIT_S, Cluster, pod_manifest
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.breakable_connection import BreakableConnection

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "try-it.md"
NOT_HERE = ("kind ", "make image ")
"""Commands that need Docker."""
FORWARDED = re.compile(r"kubectl -n kube-system port-forward \S+ (\d+) &")
"""A port of a pod, which is already the node's here."""
FENCE = Path("/etc/nvidia-device-plugin")
"""A folder of the node that the chart makes."""
ON_THE_NODES_NETWORK: tuple[Json, ...] = (
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "host-network"},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ]
            },
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": "Object{spec: Object.spec{hostNetwork: true}}"},
                }
            ],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "host-network"},
        "spec": {"policyName": "host-network"},
    },
)


def commands(page: Path) -> list[str]:
    """Each command of the page's shell blocks, with its comment; lines that go on are one command."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    joined = "".join(blocks).replace("\\\n", "\\\0")
    return [line.replace("\\\0", "\\\n") for line in joined.splitlines()]


@pytest.fixture
def images(cluster: Cluster, agent_image: str, tmp_path: Path) -> None:
    """What `kind load` brings to the node, and what the node pulls."""
    cluster.name_image(agent_image, f"docker.io/library/gpuagent:{__version__}")
    version = json.loads(_get(cluster, "/version"))["gitVersion"]
    cluster.import_images(kube_scheduler_archive(tmp_path, f"registry.k8s.io/kube-scheduler:{version}"))


@pytest.fixture
def every_pod_on_the_nodes_network(cluster: Cluster) -> Iterator[None]:
    for manifest in ON_THE_NODES_NETWORK:
        cluster.apply(manifest)
    probe = pod_manifest("probe", {})
    del probe["spec"]["hostNetwork"]
    until = time.monotonic() + WAIT_S
    while not _has_host_network(cluster.api("POST", "/api/v1/namespaces/default/pods?dryRun=All", probe)[1]):
        assert time.monotonic() < until, "the policy is not in force"
        time.sleep(0.2)
    yield
    for manifest in ON_THE_NODES_NETWORK:
        cluster.api("DELETE", cluster.client.path_of(manifest))


def _has_host_network(answer: Json) -> bool:
    """Whether the API server has made a pod of it, on the node's network."""
    return bool(answer.get("spec", {}).get("hostNetwork"))


@pytest.fixture
def reachable_kubelet(cluster: Cluster) -> Iterator[None]:
    """For `kubectl logs` and `exec`, kubelet answers at the node's address. Otherwise it does on the loopback only."""
    status = cluster.node()["status"]
    (address,) = (found["address"] for found in status["addresses"] if found["type"] == "InternalIP")
    port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    relay = BreakableConnection(("127.0.0.1", port), listen=(address, port))
    yield
    relay.close()


@pytest.fixture
def nothing_left(cluster: Cluster) -> Iterator[None]:
    """Before and afterwards, the cluster has nothing of the page, and the node no folder."""
    names = ("ack.node.gpu.schedule", "ack.node.gpu.placement", "aliyun.accelerator/nvidia_count")
    labels = dict.fromkeys(names)
    # The test before may have labeled the node, and the page's command does not overwrite a label.
    cluster.label_node(labels)
    had_fence = FENCE.exists()
    yield
    shell = Shell(cluster, None)
    shell("kubectl delete deployment,job,pod --all --grace-period=0 --force --ignore-not-found")
    shell(f"{HELM} uninstall gpuagent --namespace kube-system --ignore-not-found --wait")
    shell("kubectl -n kube-system delete pod gpuagent-test --ignore-not-found")
    cluster.label_node(labels)
    if not had_fence:
        shutil.rmtree(FENCE, ignore_errors=True)


class Shell:
    """bash in the repository's folder, with the cluster's kubectl and Helm."""

    def __init__(self, cluster: Cluster, recording: Recording | None) -> None:
        path = f"{bin_dir()}:{os.environ['PATH']}"
        self._environ = os.environ | {"PATH": path, "KUBECONFIG": str(cluster.kubeconfig())}
        self._recording = recording

    def __call__(self, command: str, *, typed: str = "") -> str:
        """What the command prints. In the recording it is what was typed."""
        bash = ("bash", "-euo", "pipefail", "-c", command)
        done = subprocess.run(bash, cwd=ROOT, env=self._environ, capture_output=True, text=True, timeout=3 * WAIT_S)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if self._recording is not None:
            self._recording.add(typed or command, done.stdout)
        return done.stdout


def running_of_job(cluster: Cluster) -> list[str]:
    """Nodes of the job's pods that have one."""
    pods = cluster.client.expect("GET", "/api/v1/namespaces/default/pods?labelSelector=gpu-topology%3Dexample-job")
    return [pod["spec"]["nodeName"] for pod in pods["items"] if "nodeName" in pod["spec"]]


def wait_printed(cluster: Cluster, app: str, text: str) -> None:
    """Wait until every pod of the Deployment has printed it: a pod is available as soon as its container runs."""
    until = time.monotonic() + WAIT_S
    pods = cluster.client.expect("GET", f"/api/v1/namespaces/default/pods?labelSelector=app%3D{app}")["items"]
    for pod in pods:
        while text not in cluster.pod_log(pod["metadata"]["name"]):
            assert time.monotonic() < until, f"{pod['metadata']['name']} has not printed {text!r}"
            time.sleep(0.1)


def _get(cluster: Cluster, path: str) -> str:
    return json.dumps(cluster.client.expect("GET", path))


@pytest.mark.usefixtures("images", "every_pod_on_the_nodes_network", "reachable_kubelet", "nothing_left")
def test_the_commands_of_the_page_work(cluster: Cluster, tmp_path: Path) -> None:
    released = package_chart(str(HELM), "https://github.com/OWNER/gpuagent", tmp_path)
    recording = Recording(Path(os.environ["TRY_IT_CAST"])) if "TRY_IT_CAST" in os.environ else None
    shell = Shell(cluster, recording)
    said: dict[str, str] = {}
    pages = []
    for command in commands(PAGE):
        if command.startswith(NOT_HERE):
            continue
        if port := FORWARDED.match(command):
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/", timeout=WAIT_S) as page:
                pages.append(page.read().decode())
            continue
        if "-l app=example-three" in command:
            wait_printed(cluster, "example-three", "My GPU is")
        said[command] = shell(command.replace(" manifests/helm/gpuagent ", f" {released} "), typed=command)
        if "PodScheduled=false" in command:
            assert running_of_job(cluster) == [], "a part of the job has started"
    outputs = "\n".join(said.values())
    assert "ready, mode share, aliyun.com/gpu-mem 640" in outputs
    assert "My share is 8 of 80 units of GPU-" in outputs
    (three,) = (text for command, text in said.items() if "--prefix -l app=example-three" in command)
    assert len(re.findall(r"My GPU is (GPU-\S+)", three)) == 3
    assert len(set(re.findall(r"My GPU is (GPU-\S+)", three))) == 1
    assert len(running_of_job(cluster)) == 8
    assert "XID 79" in outputs
    assert len(pages) == 2
    assert all("<html" in page for page in pages)
    if recording is not None:
        recording.write()
