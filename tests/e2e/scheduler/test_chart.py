"""The chart's objects on a real API server: both containers run with its arguments, configuration and rights.

The pods of the Deployment are processes here. They have the token of its service account, so a right that is missing,
and a write that the admission policies refuse, fails a test.
"""

import http.client
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION
from gpuscheduler.core.gangs.kinds import SERVED_AS, ObjectKind
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER
from manifests.render import CHART
from standin.ports import free_port
from tests.e2e.agent.prometheus import prometheus
from tests.e2e.cluster import WAIT_S
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import NODES, PODS, ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import core_node, share_node, whole_node
from tests.e2e.scheduler.pods import job, pod
from tests.e2e.scheduler.replica import LEASE_OF_ONE
from tests.e2e.stolen_token import tries

NAME, NAMESPACE = "gpu-scheduler", "gpu"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
VALUES = "--set=image.repository=gpuagent,scheduler.enabled=true,scheduler.setSchedulerName=true"


def rendered(control_plane: ControlPlane, *values: str) -> list[Json]:
    helm = (str(control_plane.bin / "helm"), "template", "release", str(CHART), f"--namespace={NAMESPACE}")
    done = subprocess.run((*helm, VALUES, *values), capture_output=True, text=True, check=True)
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    return [one for one in found if NAME in one["metadata"]["name"]]


class Deployed:
    """One pod of the chart's Deployment, as processes.

    Attributes:
        objects: the chart's, for the scheduler.
        token: of its service account.
        pages: address of the extender's pages.
    """

    def __init__(self, control_plane: ControlPlane, workdir: Path) -> None:
        self._control_plane, self._workdir = control_plane, workdir
        self.objects = rendered(control_plane)
        client = control_plane.client
        client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for one in self.objects:
            if one["kind"] != "Deployment":
                client.apply(one)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        self.token: str = client.expect("POST", account, request)["status"]["token"]
        listen, pages = free_port(), free_port()
        self.pages = f"http://127.0.0.1:{pages}"
        kubeconfig = self._kubeconfig()
        extender = [f"--kubeconfig={kubeconfig}", f"--listen=127.0.0.1:{listen}", f"--http-address=127.0.0.1:{pages}"]
        config = self._configuration(kubeconfig, listen)
        serving = ["--bind-address=127.0.0.1", f"--secure-port={free_port()}"]
        host = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', "chart")
        given = self._arguments("kube-scheduler", {"--config": f"--config={config}"})
        self.scheduler = control_plane.process(
            "chart-scheduler", (*host, str(control_plane.bin / "kube-scheduler"), *given, *serving)
        )
        command = (sys.executable, "-m", "gpuscheduler", "run", *self._arguments("gpuscheduler", {}), *extender)
        self.extender = control_plane.process("chart-extender", (*host, *command))

    def start(self) -> None:
        """Wait until the extender is ready and its kube-scheduler leads."""
        self.extender.start()
        self.extender.wait_for(lambda: self._shows("readyz"))
        self.scheduler.start()
        self.scheduler.wait_for(lambda: self._shows("metrics", "gpuscheduler_leading 1.0"))

    def stop(self) -> None:
        self.scheduler.stop()
        self.extender.stop()
        for one in reversed(self.objects):
            if one["kind"] != "Deployment":
                self._control_plane.client.request("DELETE", self._control_plane.client.path_of(one))

    def page(self, name: str) -> str:
        """Raises OSError if it is not served."""
        with urllib.request.urlopen(f"{self.pages}/{name}", timeout=WAIT_S) as answer:
            text: str = answer.read().decode()
            return text

    def _shows(self, name: str, text: str = "") -> bool:
        """Whether a page is served, with this text on it."""
        try:
            return text in self.page(name)
        except OSError:
            return False

    def _arguments(self, container: str, instead: dict[str, str]) -> list[str]:
        (deployment,) = (one for one in self.objects if one["kind"] == "Deployment")
        found = {one["name"]: one for one in deployment["spec"]["template"]["spec"]["containers"]}
        return [instead.get(text.partition("=")[0], text) for text in found[container]["args"]]

    def _kubeconfig(self) -> Path:
        config = json.loads(self._control_plane.kubeconfig("admin").read_text())
        config["users"][0]["user"]["token"] = self.token
        path = self._workdir / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def _configuration(self, kubeconfig: Path, port: int) -> Path:
        """As a pod reads it, but for the port of the extender, for the kubeconfig that no pod needs, and for its lease.

        Nothing starts kube-scheduler again if it loses the lease while the API server restarts.
        """
        (config_map,) = (one for one in self.objects if one["kind"] == "ConfigMap")
        config = yaml.safe_load(config_map["data"]["config.yaml"])
        config["clientConnection"] = {"kubeconfig": str(kubeconfig)}
        config["leaderElection"] |= LEASE_OF_ONE
        config["extenders"][0]["urlPrefix"] = re.sub(r":\d+$", f":{port}", config["extenders"][0]["urlPrefix"])
        path = self._workdir / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        return path


@pytest.fixture(scope="module")
def deployed(running_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with ExitStack() as stack:
        found = Deployed(running_control_plane, tmp_path_factory.mktemp("chart"))
        stack.callback(found.stop)
        found.start()
        yield found


Make = Callable[[Iterable[Json]], Allocations]


def test_pods_of_all_kinds_run_with_the_charts_rights(
    control_plane: ControlPlane, deployed: Deployed, make_allocations: Make
) -> None:
    """Shares, whole GPUs, a job, a job behind its gate, and a pod that evicts another."""
    allocations = make_allocations(
        [share_node("share", gpus=1), core_node("core"), whole_node("whole"), whole_node("other")]
    )
    for name, value in (("low", 1), ("high", 1000)):
        control_plane.add_priority_class(name, value)
    gated = job("gated", 2, {GPU_WHOLE: 2})
    for one in gated:
        one["spec"]["schedulingGates"] = [{"name": "gpuagent.io/job"}]
    first = [
        pod("low", {GPU_MEM: 60}, priorityClassName="low"),
        pod("core", {GPU_MEM: 5, GPU_CORE: 20}),
        pod("whole", {GPU_WHOLE: 2}),
        *job("job", 2, {GPU_WHOLE: 4}),
        *gated,
    ]
    names = control_plane.add_pods(first)
    found = _wait_running(control_plane, *names)
    assert found["low"]["metadata"]["annotations"][MEMORY_ANNOTATION] == '{"0":{"0":60}}'
    assert GROUP_ANNOTATION in found["gated-0"]["metadata"]["annotations"]
    control_plane.add_pods([pod("high", {GPU_MEM: 60}, priorityClassName="high")])
    assert "low" not in _wait_running(control_plane, "high")
    assert allocations.problems() == []
    metrics = deployed.page("metrics")
    assert re.findall(r"gpuscheduler_writes_total{.*result=\"(?:refused|dropped)\".*", metrics) == []
    assert re.findall(r'gpuscheduler_api_requests_total{code="40[13]".*', metrics) == []
    log = (control_plane.workdir / "logs" / "chart-scheduler.log").read_text()
    refused = ("forbidden", "validatingadmissionpolicy")
    assert [line for line in log.splitlines() if any(word in line.lower() for word in refused)] == []

    def sent(namespace: str) -> set[str]:
        path = f"/api/v1/namespaces/{namespace}/events"
        return {one["reason"] for one in control_plane.client.expect("GET", path)["items"]}

    # Those of kube-scheduler pass the policy, too.
    deployed.scheduler.wait_for(lambda: {"Scheduled", "Preempted"} <= sent("default"))
    deployed.scheduler.wait_for(lambda: "LeaderElection" in sent(NAMESPACE))


def test_every_panel_shows_something_and_the_page_is_clean(
    control_plane: ControlPlane, deployed: Deployed, make_allocations: Make, tmp_path: Path
) -> None:
    make_allocations([share_node("share", gpus=1), whole_node("whole")])
    rules, port = CHART / "monitoring" / "scheduler-alerts.yaml", free_port()
    pages = int(deployed.pages.rpartition(":")[2])
    with prometheus(tmp_path / "prometheus", port, rules, gpuscheduler=pages) as server:
        _wait_running(control_plane, *control_plane.add_pods([pod("share", {GPU_MEM: 60})]))
        _wait_running(control_plane, *control_plane.add_pods(job("job", 2, {GPU_WHOLE: 4})))
        control_plane.restart_apiserver()  # watches fail
        for panel in json.loads((CHART / "monitoring" / "scheduler-dashboard.json").read_text())["panels"]:
            for target in panel.get("targets", ()):
                server.wait(target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m"))
        found = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in found} == {"ok"}, found
        server.wait('ALERTS{alertname="GPUSchedulersAbsent"}', lambda result: not result)
    page = deployed.page("metrics")
    checked = subprocess.run(("promtool", "check", "metrics"), input=page, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_pods_that_ask_for_gpus_get_the_name(control_plane: ControlPlane, deployed: Deployed) -> None:
    def name(made: Json) -> str:
        answer = control_plane.client.expect("POST", f"{PODS}?dryRun=All", made)
        return str(answer["spec"]["schedulerName"])

    default: dict[str, Any] = {"schedulerName": "default-scheduler"}
    probe = pod("asks", {GPU_MEM: 1}, **default)
    deployed.scheduler.wait_for(lambda: name(probe) == NAME)
    for resource in (GPU_MEM, GPU_CORE, GPU_WHOLE):
        assert name(pod("asks", {"cpu": "1"}, {resource: 1}, **default)) == NAME
    assert name(pod("asks", {}, init=[{GPU_MEM: 1}], **default)) == NAME
    without = pod("asks", {GPU_MEM: 1})
    del without["spec"]["schedulerName"]
    assert name(without) == NAME
    assert name(pod("asks", {"cpu": "1"}, **default)) == "default-scheduler"
    assert name(pod("asks", {"nvidia.com/gpu": 1}, **default)) == "default-scheduler"
    assert name(pod("asks", {GPU_MEM: 1}, schedulerName="other")) == "other"
    assert name(pod("asks", {GPU_MEM: 1}, nodeName="there", **default)) == "default-scheduler"


# -- what the policies refuse ---------------------------------------------------------------------------------------

WIDE: tuple[Json, ...] = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "too-much"},
        "rules": [
            {"apiGroups": [one], "resources": ["*"], "verbs": ["*"]}
            for one in ("", "coordination.k8s.io", "events.k8s.io")
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "too-much"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "too-much"},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    },
)
"""Every right that RBAC can give, so that each refusal is the policies'."""


def metadata(**fields: Any) -> Json:
    return {"metadata": fields}


Request = Callable[..., tuple[int, str]]


@pytest.fixture
def request_as(control_plane: ControlPlane, deployed: Deployed) -> Iterator[Request]:
    """Asks with the token of the scheduler; pods `its-own` and `of-others` wait, as no node has GPUs."""
    client = control_plane.client
    for one in WIDE:
        client.apply(one)
    control_plane.add_pods(
        [
            pod("its-own", {GPU_MEM: 1}, annotations={"kept": "yes"}, schedulingGates=[{"name": "test/gate"}]),
            pod("of-others", {GPU_MEM: 1}, schedulerName="other"),
        ]
    )

    def ask(method: str, path: str, body: Json | None, kind: str = "application/json") -> tuple[int, str]:
        status, answer = client.request(method, path, body, kind, deployed.token)
        return status, str(answer.get("message", ""))

    # Rights and policies take a moment to be in force.
    deployed.scheduler.wait_for(lambda: ask("GET", "/api/v1/secrets", None)[0] == http.client.OK)
    refused = f"ValidatingAdmissionPolicy '{NAME}-pods'"
    probe = metadata(labels={"probe": "yes"})
    deployed.scheduler.wait_for(lambda: refused in ask("PATCH", f"{PODS}/its-own?dryRun=All", probe, MERGE)[1])
    yield ask
    for one in reversed(WIDE):
        client.request("DELETE", client.path_of(one))
    # So does their end, and the next test may be of what the token cannot do.
    deployed.scheduler.wait_for(lambda: ask("GET", "/api/v1/secrets", None)[0] == http.client.FORBIDDEN)


@pytest.fixture
def type_checker(control_plane: ControlPlane) -> Iterator[None]:
    """The controller that writes into policies which of their expressions are wrong."""
    kubeconfig = f"--kubeconfig={control_plane.kubeconfig('admin')}"
    only = ("--controllers=validatingadmissionpolicy-status-controller", "--leader-elect=false")
    serving = ("--bind-address=127.0.0.1", f"--secure-port={free_port()}")
    command = (str(control_plane.bin / "kube-controller-manager"), kubeconfig, *only, *serving)
    process = control_plane.process("type-checker", command)
    process.start()
    yield
    process.kill()


@pytest.mark.usefixtures("deployed", "type_checker")
@pytest.mark.parametrize("what", ["pods", "bindings", "events", "leases"])
def test_the_api_server_finds_the_policies_expressions_well_typed(control_plane: ControlPlane, what: str) -> None:
    def checked(policy: Json | None) -> bool:
        return "typeChecking" in (policy or {}).get("status", {})

    path = f"{POLICIES}/validatingadmissionpolicies"
    policy = control_plane.client.wait(path, f"{NAME}-{what}", checked)
    assert (policy or {})["status"]["typeChecking"] == {}


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
KUBELETS: tuple[Json, ...] = (
    {"phase": "Running"},
    {"podIP": "192.0.2.1"},
    {"podIPs": [{"ip": "192.0.2.1"}], "podIP": "192.0.2.1"},
    {"podIPs": [{"ip": "192.0.2.1"}]},
    {"hostIP": "192.0.2.1"},
    {"hostIPs": [{"ip": "192.0.2.1"}], "hostIP": "192.0.2.1"},
    {"reason": "Evicted"},
    {"message": "junk"},
    {"startTime": "2026-01-01T00:00:00Z"},
    {"observedGeneration": 7},
    {"resize": "Proposed"},
    {"containerStatuses": [{"name": "main-0", "image": "i", "imageID": "", "ready": True, "restartCount": 0}]},
)
"""Parts of a pod's status that are not the scheduler's."""
OTHERS = ("Ready", "ContainersReady", "Initialized", "PodReadyToStartContainers", "example.com/readiness-gate")
"""Conditions that are not."""


@tries(
    "It cannot change what a pod runs, its labels or its owners.",
    "It cannot change anything else of a pod's status: no other condition, no address, nothing that kubelet reports.",
)
@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("its-own", metadata(labels={"a": "b"}), "annotations gpuagent.io/nudged"),
        ("its-own", metadata(annotations={"a": "b"}), "annotations gpuagent.io/nudged"),
        ("its-own", metadata(annotations={"kept": None}), "annotations gpuagent.io/nudged"),
        ("its-own", metadata(finalizers=["a/b"]), "annotations gpuagent.io/nudged"),
        ("its-own", metadata(generateName="junk"), "annotations gpuagent.io/nudged"),
        ("its-own", metadata(ownerReferences=[OWNER]), "annotations gpuagent.io/nudged"),
        ("its-own/status", metadata(annotations={"a": "b"}), "annotations gpuagent.io/nudged"),
        ("its-own", {"spec": {"containers": [{"name": "main-0", "image": "evil"}]}}, "may not change its spec"),
        (
            "its-own",
            [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
            "may not change its spec",
        ),
        ("its-own", {"spec": {"nodeSelector": {"a": "b"}}}, "may not change its spec"),
        ("its-own", {"spec": {"activeDeadlineSeconds": 1}}, "may not change its spec"),
        (
            "its-own",
            {"spec": {"schedulingGates": [{"name": "test/gate", "$patch": "delete"}]}},
            "may take the scheduling gate gpuagent.io/job off",
        ),
        *(
            (f"{name}/status", {"status": status}, said)
            for name in ("its-own", "of-others")
            for status, said in (
                *((fields, "what kubelet says") for fields in KUBELETS),
                *(
                    ({"conditions": [{"type": kind, "status": "True"}]}, "PodScheduled and DisruptionTarget")
                    for kind in OTHERS
                ),
            )
        ),
        ("of-others", metadata(annotations={"gpuagent.io/nudged": "1"}), "its own pods only"),
    ],
)
def test_what_is_not_the_schedulers_of_a_pod_is_refused(request_as: Request, path: str, body: Any, said: str) -> None:
    kind = "application/json-patch+json" if isinstance(body, list) else STRATEGIC
    status, message = request_as("PATCH", f"{PODS}/{path}", body, kind)
    assert status == http.client.UNPROCESSABLE_ENTITY, message
    assert f"ValidatingAdmissionPolicy '{NAME}-pods'" in message
    assert said in message


@tries(
    "It can set `nominatedNodeName` and the conditions `PodScheduled` and `DisruptionTarget` of any pod, with any message.",
    "It can set the annotations `gpuagent.io/nudged` and `gpuagent.io/gang-commit` of pods with its own `schedulerName`.",
    "It can delete any pod: it preempts, and a policy cannot say which pods.",
)
def test_what_is_the_schedulers_of_a_pod_is_not(request_as: Request) -> None:
    nudge = metadata(annotations={"gpuagent.io/nudged": "1", "gpuagent.io/gang-commit": "{}"})
    assert request_as("PATCH", f"{PODS}/its-own", nudge, MERGE)[0] == http.client.OK
    for name in ("its-own", "of-others"):  # it evicts those of others, and says so in their status
        status = {"status": {"nominatedNodeName": "n", "conditions": [{"type": "DisruptionTarget", "status": "True"}]}}
        assert request_as("PATCH", f"{PODS}/{name}/status", status, STRATEGIC)[0] == http.client.OK
    assert request_as("DELETE", f"{PODS}/of-others", {"gracePeriodSeconds": 0})[0] == http.client.OK


def test_a_condition_of_another_is_not_taken_away(control_plane: ControlPlane, request_as: Request) -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    control_plane.client.expect("PATCH", f"{PODS}/of-others/status", ready, STRATEGIC)
    gone = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    status, message = request_as("PATCH", f"{PODS}/of-others/status", gone, STRATEGIC)
    assert status == http.client.UNPROCESSABLE_ENTITY
    assert "PodScheduled and DisruptionTarget" in message


LEASES = "/apis/coordination.k8s.io/v1/namespaces"


@tries(
    "It can take over its own lease, so that no replica leads.",
    "It cannot write another lease, such as that of the cluster's own scheduler.",
)
def test_the_lease_of_the_clusters_own_scheduler_is_out_of_reach(
    control_plane: ControlPlane, request_as: Request
) -> None:
    """Its system role gives the right, so the policy alone keeps it from stopping the cluster's scheduler."""

    def lease(namespace: str, name: str) -> Json:
        meta = {"name": name, "namespace": namespace}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {"holderIdentity": "x"},
        }

    others = [("kube-system", "kube-scheduler"), (NAMESPACE, "kube-scheduler"), ("kube-system", NAME), ("default", "l")]
    for namespace, name in others:
        path = f"{LEASES}/{namespace}/leases"
        status, message = request_as("POST", path, lease(namespace, name))
        assert (status, "its own lease" in message) == (http.client.UNPROCESSABLE_ENTITY, True), message
        control_plane.client.apply(lease(namespace, name))
        try:
            taken = {"spec": {"holderIdentity": "stolen"}}
            for method, body in (("PATCH", taken), ("DELETE", None)):
                status, message = request_as(method, f"{path}/{name}", body, MERGE)
                assert status in (http.client.UNPROCESSABLE_ENTITY, http.client.FORBIDDEN), message
                assert f"ValidatingAdmissionPolicy '{NAME}-leases'" in message
        finally:
            control_plane.client.request("DELETE", f"{path}/{name}")
    own = f"{LEASES}/{NAMESPACE}/leases/{NAME}"
    holder = control_plane.client.expect("GET", own)["spec"]["holderIdentity"]
    # The same again, so that the leader of the other tests stays.
    assert request_as("PATCH", own, {"spec": {"holderIdentity": holder}}, MERGE)[0] == http.client.OK
    assert request_as("DELETE", own, None)[0] == http.client.UNPROCESSABLE_ENTITY


def event(**changed: Any) -> Json:
    """As gpuscheduler sends them."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "tried", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "of-others", "uid": "u"},
        "type": "Warning",
        "reason": "NodeAvoided",
        "message": "m",
        "source": {"component": "gpuscheduler", "host": "h"},
        "reportingComponent": "gpuscheduler",
        "reportingInstance": "h",
        **changed,
    }


def new_event(**changed: Any) -> Json:
    """As kube-scheduler sends them."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "tried", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "of-others", "uid": "u"},
        "type": "Normal",
        "reason": "Scheduled",
        "action": "Binding",
        "note": "n",
        "reportingController": NAME,
        "reportingInstance": f"{NAME}-h",
        **changed,
    }


EVENTS, NEW_EVENTS = ("/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events")
A_NODE = {"apiVersion": "v1", "kind": "Node", "name": "n"}


@tries(
    "It cannot send an Event in another's name, with a reason of others, about other objects, or of more than a few KB.",
)
@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (EVENTS, event(reason="Killing"), "reasons of its own list"),
        (EVENTS, event(involvedObject=A_NODE), "about pods"),
        (EVENTS, event(involvedObject={"kind": "Lease", "name": NAME, "namespace": "default"}), "about pods"),
        (EVENTS, event(message="m" * 1025), "at most 1024 characters"),
        (EVENTS, event(action="a" * 1000), "at most 1024 characters"),
        (EVENTS, event(source={"component": "kubelet"}), "in its own name"),
        (EVENTS, event(reportingComponent="kubelet"), "in its own name"),
        (EVENTS, event(reportingComponent="", source={}), "in its own name"),
        (EVENTS, event(metadata={"name": "tried", "labels": {"a": "b"}}), "only the fields"),
        (EVENTS, event(metadata={"name": "tried", "annotations": {"a": "b" * 100_000}}), "only the fields"),
        (EVENTS, event(metadata={"generateName": "tried"}), "only the fields"),
        (EVENTS, event(related={"kind": "Pod", "fieldPath": "x" * 100_000}), "only the fields"),
        (NEW_EVENTS, new_event(reason="Evicted"), "reasons of its own list"),
        (NEW_EVENTS, new_event(regarding=A_NODE), "about pods"),
        (NEW_EVENTS, new_event(reportingController="kubelet"), "in its own name"),
        (NEW_EVENTS, new_event(metadata={"name": "tried", "annotations": {"a": "b" * 100_000}}), "only the fields"),
    ],
)
def test_an_event_that_is_not_the_schedulers_is_refused(request_as: Request, path: str, body: Json, said: str) -> None:
    status, message = request_as("POST", path, body)
    assert status == http.client.UNPROCESSABLE_ENTITY, message
    assert f"ValidatingAdmissionPolicy '{NAME}-events'" in message
    assert said in message


@tries(
    "It can send Events about any pod, in its own name, with its own reasons and messages of up to 1,024 characters.",
)
def test_events_are_sent_about_any_pod_and_are_not_taken_back(control_plane: ControlPlane, request_as: Request) -> None:
    for path, body in ((EVENTS, event()), (NEW_EVENTS, new_event(metadata={"name": "new", "namespace": "default"}))):
        assert request_as("POST", path, body)[0] == http.client.CREATED
        one = f"{path}/{body['metadata']['name']}"
        counted = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
        assert request_as("PATCH", one, counted if path == NEW_EVENTS else {"count": 2}, MERGE)[0] == http.client.OK
        assert request_as("DELETE", one, None)[0] == http.client.UNPROCESSABLE_ENTITY
        control_plane.client.request("DELETE", one)
    others = event(metadata={"name": "others", "namespace": "default"}, reportingComponent="kubelet", source={})
    control_plane.client.expect("POST", EVENTS, others)
    status, message = request_as("PATCH", f"{EVENTS}/others", {"message": "forged"}, MERGE)
    assert (status, "ValidatingAdmissionPolicy" in message) == (http.client.UNPROCESSABLE_ENTITY, True), message
    control_plane.client.request("DELETE", f"{EVENTS}/others")


@tries(
    "It cannot make other pods, or write to nodes.",
    "It can evict pods, as far as budgets allow it, if a setting needs the right, such as `job-evict-broken`.",
)
def test_neither_pods_nor_other_parts_of_them_are_made(request_as: Request) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "of-others"}}
    for path, body in ((PODS, pod("new", {GPU_MEM: 1})), (f"{PODS}/of-others/eviction", eviction)):
        status, message = request_as("POST", path, body)
        assert (status, "the scheduler may bind pods" in message) == (http.client.UNPROCESSABLE_ENTITY, True), message


@tries(
    "It can bind any waiting pod to any node, with the annotations of GPUs of its choice.",
)
def test_a_binding_carries_gpus_only(control_plane: ControlPlane, request_as: Request, make_allocations: Make) -> None:
    make_allocations([share_node("node")])
    control_plane.client.expect("PATCH", f"{NODES}/node", {"spec": {"unschedulable": True}}, MERGE)

    def bind(path: str, **annotations: str) -> tuple[int, str]:
        return request_as(
            "POST",
            path,
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "of-others", "annotations": annotations},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
            },
        )

    status, message = bind(f"{PODS}/of-others/binding", other="x")
    assert (status, "with their GPUs only" in message) == (http.client.UNPROCESSABLE_ENTITY, True), message
    status, message = bind("/api/v1/namespaces/default/bindings")
    assert (status, "at their own path only" in message) == (http.client.UNPROCESSABLE_ENTITY, True), message
    assert bind(f"{PODS}/of-others/binding", **{GROUP_ANNOTATION: "0"})[0] == http.client.CREATED


# -- what a stolen token can do with the chart's rights alone ----------------------------------------------------------

VOLUME: Json = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "of-others"},
    "spec": {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/nowhere"},
    },
}
CLAIM: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "of-others", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}},
}
VOLUMES, CLAIMS = "/api/v1/persistentvolumes", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
VOLUME_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


@pytest.fixture
def with_stolen_token(control_plane: ControlPlane, deployed: Deployed) -> Request:
    """Asks with the token of the scheduler, and with its rights."""

    def ask(method: str, path: str, body: Json | None = None, kind: str = MERGE) -> tuple[int, str]:
        given = "application/json" if method in {"POST", "PUT"} else kind
        status, answer = control_plane.client.request(method, path, body, given, deployed.token)
        return status, str(answer.get("message", ""))

    return ask


@tries(
    "It can read all nodes, pods, volumes and ResourceClaims, and the ConfigMaps of `kube-system`.",
    "It can read all Jobs, and all JobSets, LeaderWorkerSets, RayClusters, PodGroups and Workloads, where the cluster "
    "has them.",
    "It cannot read Secrets.",
)
def test_a_stolen_token_reads_what_the_page_says(control_plane: ControlPlane, with_stolen_token: Request) -> None:
    readable = ("/api/v1/nodes", "/api/v1/pods", VOLUMES, VOLUME_CLAIMS, "/apis/resource.k8s.io/v1/resourceclaims")
    for path in (*readable, "/api/v1/namespaces/kube-system/configmaps"):
        assert with_stolen_token("GET", path)[0] == http.client.OK, path
    for kind, served_as in SERVED_AS.items():
        path = f"/apis/{served_as.group}/{served_as.versions[0]}/{served_as.resource}"
        # Only tests of other projects install the other kinds. An API server without one answers 404, whatever the
        # rights are.
        there, _ = control_plane.client.request("GET", path)
        assert there == http.client.OK or kind is not ObjectKind.BATCH_JOB
        assert with_stolen_token("GET", path)[0] == there, path
    for path in ("/api/v1/secrets", "/api/v1/namespaces/kube-system/secrets", "/api/v1/namespaces/gpu/secrets/none"):
        assert with_stolen_token("GET", path)[0] == http.client.FORBIDDEN, path


@contextmanager
def chart_with(value: str, control_plane: ControlPlane, deployed: Deployed) -> Iterator[None]:
    """Gives the scheduler the rights that the chart with another value gives it, and the policy on their use."""

    def apply(objects: Iterable[Json]) -> None:
        for manifest in objects:
            if manifest["kind"] in {"ClusterRole", "Role", "ValidatingAdmissionPolicy"}:
                control_plane.client.apply(manifest)

    apply(rendered(control_plane, f"--set={value}"))
    yield
    apply(deployed.objects)


@pytest.fixture
def evicting_chart(control_plane: ControlPlane, deployed: Deployed) -> Iterator[None]:
    """The chart with a setting that evicts pods."""
    with chart_with("scheduler.settings.job-evict-broken=60", control_plane, deployed):
        yield


def _evicts(control_plane: ControlPlane, with_stolen_token: Request) -> int:
    """The answer to a trial eviction of another's pod."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "of-others"}}
    return with_stolen_token("POST", f"{PODS}/of-others/eviction?dryRun=All", eviction)[0]


@tries(
    "It can evict pods, as far as budgets allow it, if a setting needs the right, such as `job-evict-broken`.",
)
def test_a_stolen_token_does_not_evict_without_a_setting_that_needs_it(
    control_plane: ControlPlane, with_stolen_token: Request
) -> None:
    control_plane.add_pods([pod("of-others", {GPU_MEM: 1}, schedulerName="other")])
    assert _evicts(control_plane, with_stolen_token) == http.client.FORBIDDEN


@tries(
    "It can evict pods, as far as budgets allow it, if a setting needs the right, such as `job-evict-broken`.",
)
@pytest.mark.usefixtures("evicting_chart")
def test_a_stolen_token_evicts_with_a_setting_that_needs_it(
    control_plane: ControlPlane, deployed: Deployed, with_stolen_token: Request
) -> None:
    control_plane.add_pods([pod("of-others", {GPU_MEM: 1}, schedulerName="other")])
    deployed.scheduler.wait_for(lambda: _evicts(control_plane, with_stolen_token) == http.client.CREATED)


@pytest.fixture
def chart_with_placeholders(control_plane: ControlPlane, deployed: Deployed) -> Iterator[None]:
    """The chart with the value that has it make placeholders."""
    with chart_with("scheduler.placeholders=true", control_plane, deployed):
        yield


@tries(
    "It can make pods in the release's namespace, if `scheduler.placeholders` is on. They name no scheduler that exists, and "
    "the image `placeholder.invalid/gpuagent`, of which there is none.",
    "It cannot make other pods, or write to nodes.",
)
@pytest.mark.usefixtures("chart_with_placeholders")
def test_a_stolen_token_makes_placeholders_only(deployed: Deployed, with_stolen_token: Request) -> None:
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def makes(path: str = pods, **other: Any) -> int:
        made = pod("made", {GPU_MEM: 1}, schedulerName=PLACEHOLDER_SCHEDULER)
        del made["spec"]["initContainers"]
        made["spec"]["containers"][0]["image"] = "placeholder.invalid/gpuagent"
        made["spec"] |= other
        return with_stolen_token("POST", f"{path}?dryRun=All", made)[0]

    # Rights and policies take a moment to be in force.
    deployed.scheduler.wait_for(lambda: makes() == http.client.CREATED)
    container = {"name": "main", "image": "busybox:1.36"}
    assert makes(schedulerName="default-scheduler") == http.client.UNPROCESSABLE_ENTITY
    assert makes(containers=[container]) == http.client.UNPROCESSABLE_ENTITY
    assert makes(initContainers=[container]) == http.client.UNPROCESSABLE_ENTITY
    assert makes(nodeName="node") == http.client.UNPROCESSABLE_ENTITY
    assert makes(PODS) == http.client.FORBIDDEN


@tries(
    "It cannot make other pods, or write to nodes.",
)
def test_a_stolen_token_has_no_right_to_make_pods_and_to_write_nodes(
    control_plane: ControlPlane, with_stolen_token: Request, make_allocations: Make
) -> None:
    make_allocations([share_node("node")])
    assert with_stolen_token("POST", PODS, pod("made", {GPU_MEM: 1}))[0] == http.client.FORBIDDEN
    for path in (f"{NODES}/node", f"{NODES}/node/status"):
        assert with_stolen_token("PATCH", path, metadata(labels={"a": "b"}))[0] == http.client.FORBIDDEN
    assert with_stolen_token("DELETE", f"{NODES}/node")[0] == http.client.FORBIDDEN


@tries(
    "It can change all PersistentVolumes and PersistentVolumeClaims, such as `claimRef` and the reclaim policy.",
)
def test_a_stolen_token_changes_volumes(control_plane: ControlPlane, with_stolen_token: Request) -> None:
    control_plane.client.apply(VOLUME)
    claim_ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "thief"}
    volume_claim: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "of-others", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    control_plane.client.apply(volume_claim)
    try:
        taken = {"spec": {"persistentVolumeReclaimPolicy": "Delete", "claimRef": claim_ref}}
        status, message = with_stolen_token("PATCH", f"{VOLUMES}/of-others", taken)
        assert status == http.client.OK, message
        status, message = with_stolen_token("PATCH", f"{VOLUME_CLAIMS}/of-others", metadata(annotations={"a": "b"}))
        assert status == http.client.OK, message
    finally:
        control_plane.client.request("DELETE", f"{VOLUMES}/of-others")
        control_plane.client.request("DELETE", f"{VOLUME_CLAIMS}/of-others")


@tries(
    "It can change, make and delete all ResourceClaims, and allocate their devices.",
)
def test_a_stolen_token_allocates_claims(control_plane: ControlPlane, with_stolen_token: Request) -> None:
    control_plane.client.apply(CLAIM)
    device = {"request": "gpu", "driver": "gpu.example.com", "pool": "node", "device": "gpu-0"}
    try:
        allocated = {"status": {"allocation": {"devices": {"results": [device]}}}}
        status, message = with_stolen_token("PATCH", f"{CLAIMS}/of-others/status", allocated)
        assert status == http.client.OK, message
        assert with_stolen_token("PATCH", f"{CLAIMS}/of-others", metadata(labels={"a": "b"}))[0] == http.client.OK
        made = CLAIM | {"metadata": {"name": "made", "namespace": "default"}}
        assert with_stolen_token("POST", CLAIMS, made)[0] == http.client.CREATED
        assert with_stolen_token("DELETE", f"{CLAIMS}/made")[0] == http.client.OK
    finally:
        for name in ("of-others", "made"):
            control_plane.client.request("DELETE", f"{CLAIMS}/{name}")


def _wait_running(control_plane: ControlPlane, *names: str) -> dict[str, Json]:
    return control_plane.pods.wait(
        lambda pods: all(name in pods and pods[name]["status"]["phase"] == "Running" for name in names)
    )
