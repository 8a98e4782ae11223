"""The scheduler's part of the chart: off by default, and right for each version of Kubernetes."""

import argparse
import re
from typing import Any

import pytest
import yaml

from gpuagent.domain.pods.annotations import WRITTEN_KEYS
from gpuagent.domain.sharing.mode import GPU_COUNT
from gpuscheduler.cluster_api.writes import NUDGED_ANNOTATION
from gpuscheduler.core.gangs.kinds import SERVED_AS
from gpuscheduler.core.gpu_request import RESOURCES
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, JOB_GATE
from gpuscheduler.scheduler_settings import TABLE, SchedulerSettings
from manifests.render import SCHEDULER_CHARTS_OWN
from tests.chart.conftest import Chart, find
from tests.chart.test_render import EVERYTHING, VERSIONS, check

ON: dict[str, Any] = {"enabled": True}
NAME = "gpu-scheduler"
SOURCES = EVERYTHING["networkPolicy"]["from"]
SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("kube-system", {"scheduler": ON}),
    "everything": (
        "gpu",
        EVERYTHING
        | {
            "scheduler": {
                "enabled": True,
                "name": "gpushare-scheduler",
                "settings": {"log-format": "json"},
                "replicas": 3,
                "kubeScheduler": {"tag": "v1.24.17", "resources": {"limits": {"memory": "1Gi"}}},
                "resources": {"requests": {"cpu": 1}},
                "nodeSelector": {"node-role.kubernetes.io/infra": ""},
                "tolerations": [{"operator": "Exists"}],
            }
        },
    ),
    "nothing": (
        "gpu",
        {
            "admissionPolicy": {"enabled": False},
            "scheduler": ON | {"priorityClassName": "", "tolerations": [], "replicas": 1},
        },
    ),
}


def pod(objects: list[dict[str, Any]]) -> Any:
    return find(objects, "Deployment", NAME)["spec"]["template"]


def containers(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["name"]: one for one in pod(objects)["spec"]["containers"]}


def configuration(objects: list[dict[str, Any]]) -> Any:
    return yaml.safe_load(find(objects, "ConfigMap", NAME)["data"]["config.yaml"])


def settings_of(objects: list[dict[str, Any]]) -> SchedulerSettings:
    parser = argparse.ArgumentParser()
    TABLE.add_flags(parser)
    arguments = [text.replace("$$", "$") for text in containers(objects)["gpuscheduler"]["args"]]
    return TABLE.load(vars(parser.parse_args(arguments)), {})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", SETS)
def test_every_version_has_a_schema_for_what_it_gets(chart: Chart, version: str, values: str) -> None:
    namespace, chosen = SETS[values]
    check(version, chart.render(version=version, namespace=namespace, **chosen))


@pytest.mark.parametrize("values", SETS)
def test_helm_has_nothing_to_say(chart: Chart, values: str) -> None:
    done = chart.lint(**SETS[values][1])
    assert done.returncode == 0, done.stdout


def test_nothing_of_it_is_there_by_default(chart: Chart) -> None:
    assert not [one for one in chart.render() if NAME in one["metadata"]["name"]]


# -- kube-scheduler -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "api"),
    [
        ("1.18.20", "v1alpha2"),
        ("1.19.16", "v1beta1"),
        ("1.22.17", "v1beta1"),
        ("1.23.17", "v1beta3"),
        ("1.24.17", "v1beta3"),
        ("1.25.0", "v1"),
        ("v1.31.1-aliyun.1", "v1"),
        ("1.37.0", "v1"),
    ],
)
def test_kube_scheduler_gets_a_configuration_of_its_version(chart: Chart, version: str, api: str) -> None:
    found = configuration(chart.render(version=version, scheduler=ON))
    assert found["apiVersion"] == f"kubescheduler.config.k8s.io/{api}"
    assert found["kind"] == "KubeSchedulerConfiguration"
    # Before 1.23 it serves without authentication as well, by default on all addresses.
    assert ("healthzBindAddress" in found) == (api in {"v1alpha2", "v1beta1"})
    (extender,) = found["extenders"]
    assert extender["httpTimeout"] == (30 * 10**9 if api == "v1alpha2" else "30s")


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("1.36.3", "v1.36.3"),
        ("v1.31.1-aliyun.1", "v1.31.1"),
        ("v1.30.5-gke.1014001", "v1.30.5"),
        ("v1.29.8-eks-a737599", "v1.29.8"),
    ],
)
def test_kube_scheduler_is_of_the_clusters_version(chart: Chart, version: str, tag: str) -> None:
    objects = chart.render(version=version, scheduler=ON)
    assert containers(objects)["kube-scheduler"]["image"] == f"registry.k8s.io/kube-scheduler:{tag}"


def test_another_image_of_kube_scheduler_has_a_configuration_of_its_tag(chart: Chart) -> None:
    def scheduler(**image: str) -> list[dict[str, Any]]:
        return chart.render(version="1.25", scheduler=ON | {"kubeScheduler": {"repository": "r/ks"} | image})

    older = scheduler(tag="v1.24.17")
    assert containers(older)["kube-scheduler"]["image"] == "r/ks:v1.24.17"
    assert configuration(older)["apiVersion"] == "kubescheduler.config.k8s.io/v1beta3"
    digest = "sha256:" + "0" * 64
    by_digest = scheduler(digest=digest)
    assert containers(by_digest)["kube-scheduler"]["image"] == f"r/ks@{digest}"
    assert configuration(by_digest)["apiVersion"] == "kubescheduler.config.k8s.io/v1"


def test_kube_scheduler_calls_the_extender_beside_it(chart: Chart) -> None:
    objects = chart.render(namespace="gpu", scheduler=ON | {"name": "mine"})
    found, settings = configuration(objects), settings_of(objects)
    assert [profile["schedulerName"] for profile in found["profiles"]] == ["mine"] == list(settings.scheduler_name)
    (extender,) = found["extenders"]
    host, port = settings.listen
    assert (host, extender["urlPrefix"]) == ("127.0.0.1", f"http://127.0.0.1:{port}")
    assert {extender[f"{verb}Verb"] for verb in ("filter", "bind", "preempt")} == {"filter", "bind", "preempt"}
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert [one["name"] for one in extender["managedResources"]] == [*RESOURCES, GPU_COUNT]
    election = found["leaderElection"]
    assert settings.lease == f"{election['resourceNamespace']}/{election['resourceName']}" == f"gpu/{NAME}"
    rules = find(objects, "Role", NAME)["rules"]
    assert ["gpu-scheduler"] in [rule.get("resourceNames") for rule in rules]


@pytest.mark.parametrize(
    ("scores_others", "uses_claims", "verbs"),
    [
        (False, False, []),
        (False, True, ["prioritize-claims"]),
        (True, False, ["prioritize"]),
        (True, True, ["prioritize"]),
    ],
)
def test_nodes_are_scored_for_the_pods_that_the_values_name(
    chart: Chart, scores_others: bool, uses_claims: bool, verbs: list[str]
) -> None:
    """Each of them costs a call. The claims are read with a right of its own, only where there are some."""
    values = ON | {"scorePodsWithoutGpus": scores_others}
    objects = chart.render(version="1.36.3", scheduler=values, dra={"enabled": uses_claims})
    _, *others = configuration(objects)["extenders"]
    assert [other["prioritizeVerb"] for other in others] == verbs
    assert all(other["ignorable"] for other in others)
    rules = find(objects, "ClusterRole", NAME)["rules"]
    groups = {group for rule in rules for group in rule["apiGroups"]}
    assert ("resource.k8s.io" in groups) == uses_claims


def test_a_change_of_the_configuration_rolls_the_pods(chart: Chart) -> None:
    before, after = (chart.render(scheduler=ON | {"name": name}) for name in ("one", "other"))
    assert pod(before)["metadata"]["annotations"] != pod(after)["metadata"]["annotations"]
    assert pod(before) == pod(chart.render(scheduler=ON | {"name": "one", "replicas": 5}))


# -- the pod --------------------------------------------------------------------------------------------------------


def test_the_pod_has_no_rights_on_its_node(chart: Chart) -> None:
    for namespace, values in SETS.values():
        objects = chart.render(namespace=namespace, **values)
        spec = pod(objects)["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert [set(volume) - {"name"} for volume in spec["volumes"]] == [{"configMap"}]
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
        # NVIDIA's runtime would give it every GPU: the image asks for them.
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in containers(objects)["gpuscheduler"]["env"]


def test_seccomp_is_an_annotation_where_it_is_no_field(chart: Chart) -> None:
    older = pod(chart.render(version="1.18", scheduler=ON))
    assert "seccompProfile" not in older["spec"]["securityContext"]
    assert older["metadata"]["annotations"]["seccomp.security.alpha.kubernetes.io/pod"] == "runtime/default"
    assert "seccomp" not in str(pod(chart.render(version="1.19", scheduler=ON))["metadata"])


def test_probes_and_metrics_are_at_ports_that_the_pod_has(chart: Chart) -> None:
    objects = chart.render(scheduler=ON, metrics={"podMonitor": {"enabled": True}})
    for container in containers(objects).values():
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
    settings = settings_of(objects)
    assert settings.http_address == ("", ports["http"])
    monitor = find(objects, "PodMonitor", NAME)["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod(objects)["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == "http"
    assert {one["targetLabel"]: one.get("replacement") for one in endpoint["relabelings"]}["job"] == "gpuscheduler"
    agents = find(objects, "PodMonitor", "gpuagent")["spec"]["selector"]["matchLabels"]
    assert not agents.items() <= pod(objects)["metadata"]["labels"].items()


def test_settings_reach_the_scheduler_as_they_were_given(chart: Chart) -> None:
    objects = chart.render(scheduler=ON | {"settings": {"policy": "binpack", "log-level": "debug"}})
    found = settings_of(objects)
    assert (found.policy, found.log_level) == ("binpack", "debug")
    defaults = settings_of(chart.render(scheduler=ON))
    assert defaults == SchedulerSettings(lease=f"kube-system/{NAME}", scheduler_name=frozenset({NAME}))
    assert SCHEDULER_CHARTS_OWN.keys() <= SchedulerSettings.__dataclass_fields__.keys()


def test_its_priority_class_is_admitted_outside_of_kube_system(chart: Chart) -> None:
    def classes(**values: Any) -> Any:
        quota = find(chart.render(namespace="gpu", **values), "ResourceQuota", "gpuagent")
        return quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"]

    assert classes() == ["system-node-critical"]
    assert classes(scheduler=ON) == ["system-node-critical", "system-cluster-critical"]
    assert classes(scheduler=ON | {"priorityClassName": ""}) == ["system-node-critical"]


def test_a_network_policy_is_made_for_it_too(chart: Chart) -> None:
    objects = chart.render(scheduler=ON, networkPolicy={"enabled": True, "from": SOURCES})
    spec = find(objects, "NetworkPolicy", NAME)["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= pod(objects)["metadata"]["labels"].items()
    ports = {port["containerPort"] for one in containers(objects).values() for port in one["ports"]}
    (rule,) = spec["ingress"]
    assert ({port["port"] for port in rule["ports"]}, rule["from"]) == (ports, SOURCES)
    (rule,) = find(objects, "NetworkPolicy", "gpuagent")["spec"]["ingress"]
    assert rule["ports"] == [{"port": 9445, "protocol": "TCP"}]
    *others, scheduler = rule["from"]
    assert others == SOURCES
    assert scheduler["podSelector"]["matchLabels"].items() <= pod(objects)["metadata"]["labels"].items()


def test_the_scheduler_reaches_agents_also_if_nothing_else_does(chart: Chart) -> None:
    objects = chart.render(scheduler=ON, networkPolicy={"enabled": True})
    (rule,) = find(objects, "NetworkPolicy", "gpuagent")["spec"]["ingress"]
    assert [list(source) for source in rule["from"]] == [["podSelector"]]
    assert find(objects, "NetworkPolicy", NAME)["spec"]["ingress"] == []


def test_it_asks_the_agents_of_its_own_release_unless_it_is_told_otherwise(chart: Chart) -> None:
    assert settings_of(chart.render(namespace="gpu", scheduler=ON)).agent_namespace == "gpu"
    off = chart.render(namespace="gpu", scheduler=ON | {"settings": {"agent-namespace": "off"}})
    assert settings_of(off).agent_namespace == ""


def test_rules_and_dashboard_come_with_it(chart: Chart) -> None:
    metrics = {"prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
    objects = chart.render(scheduler=ON, metrics=metrics)
    assert find(objects, "PrometheusRule", NAME)["spec"]["groups"][0]["name"] == "gpuscheduler"
    assert "gpuscheduler.json" in find(objects, "ConfigMap", "gpuagent-dashboard")["data"]
    without = chart.render(metrics=metrics)
    rules = [one for one in without if one["kind"] == "PrometheusRule"]
    assert rules
    assert "gpuscheduler" not in str(rules), "its alerts would fire where it is not"
    assert "gpuscheduler.json" not in find(without, "ConfigMap", "gpuagent-dashboard")["data"]


# -- rights ---------------------------------------------------------------------------------------------------------


def test_the_rights_beside_those_of_every_kube_scheduler_are_no_more_than_these(chart: Chart) -> None:
    objects = chart.render(namespace="gpu", scheduler=ON)
    kinds = ("ClusterRole", "Role")
    rules = [
        rule for one in objects if one["kind"] in kinds and NAME in one["metadata"]["name"] for rule in one["rules"]
    ]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["pods"], ["patch"]),
        (["jobs"], ["list", "watch"]),
        (["jobsets"], ["list", "watch"]),
        (["leaderworkersets"], ["list", "watch"]),
        (["rayclusters"], ["list", "watch"]),
        (["podgroups"], ["list", "watch"]),
        (["podgroups", "workloads"], ["list", "watch"]),
        (["leases"], ["create"]),
        (["leases"], ["get", "update"]),
        (["configmaps"], ["list", "watch"]),
    ]
    read = {(group, name) for rule in rules for group in rule["apiGroups"] for name in rule["resources"]}
    assert read >= {(served_as.group, served_as.resource) for served_as in SERVED_AS.values()}
    bound = {
        one["roleRef"]["name"]
        for one in objects
        if one["kind"].endswith("RoleBinding") and one["subjects"][0]["name"] == NAME
    }
    assert bound == {NAME, f"{NAME}-reports", "system:kube-scheduler", "system:volume-scheduler"}
    assert find(objects, "RoleBinding", NAME)["metadata"]["namespace"] == "gpu"
    assert find(objects, "RoleBinding", f"{NAME}-reports")["metadata"]["namespace"] == "kube-system"
    without = chart.render(scheduler=ON, rbac={"configMaps": False})
    assert f"{NAME}-reports" not in {one["metadata"]["name"] for one in without}


@pytest.mark.parametrize("created", [True, False])
def test_rights_and_policies_follow_the_service_account(chart: Chart, created: bool) -> None:
    account = {"create": created, "name": "placement"}
    objects = chart.render(namespace="gpu", scheduler=ON | {"serviceAccount": account})
    usual = chart.render(namespace="gpu", scheduler=ON)
    made = [one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"]
    assert made == (["gpuagent", "placement"] if created else ["gpuagent"])
    assert pod(objects)["spec"]["serviceAccountName"] == "placement"
    of_both = str([one for one in objects if one["kind"] != "ServiceAccount"])
    of_usual = str([one for one in usual if one["kind"] != "ServiceAccount"])
    named = ("'kind': 'ServiceAccount', 'name': '{}'", "system:serviceaccount:gpu:{}'", "'serviceAccountName': '{}'")
    for form in named:
        times = of_usual.count(form.format(NAME))
        assert times > 0
        assert (of_both.count(form.format("placement")), of_both.count(form.format(NAME))) == (times, 0), form


POLICIES = ("pods", "bindings", "events", "leases")


def policy(objects: list[dict[str, Any]], what: str) -> Any:
    return find(objects, "ValidatingAdmissionPolicy", f"{NAME}-{what}")["spec"]


def test_policies_are_about_its_service_account_and_know_the_names_of_the_code(chart: Chart) -> None:
    objects = chart.render(namespace="gpu", scheduler=ON | {"name": "mine"})
    for what in POLICIES:
        (condition,) = policy(objects, what)["matchConditions"]
        assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:gpu:gpu-scheduler'"
    pods, bindings = (
        " ".join(one["expression"] for one in policy(objects, what)["validations"]) for what in ("pods", "bindings")
    )
    assert set(re.findall(r"'([\w./-]+)'", bindings)) - {"CREATE", "pods"} == set(WRITTEN_KEYS)
    assert set(re.findall(r"'(gpuagent\.io/[\w-]+)'", pods)) == {NUDGED_ANNOTATION, COMMIT_ANNOTATION, JOB_GATE}
    assert "'mine'" in pods
    (lease,) = policy(objects, "leases")["validations"]
    assert "== 'gpu'" in lease["expression"]
    senders = {one["name"]: one["expression"] for one in policy(objects, "events")["variables"]}["senders"]
    assert senders == "['mine', 'gpuscheduler']"


@pytest.mark.parametrize(("version", "there"), [("1.29", False), ("1.30", True), ("1.36", True)])
def test_policies_are_there_where_the_api_server_has_them(chart: Chart, version: str, there: bool) -> None:
    objects = chart.render(version=version, scheduler=ON)
    names = {one["metadata"]["name"] for one in objects if one["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert ({f"{NAME}-{what}" for what in POLICIES} <= names) is there
    assert ("can change every pod" in chart.notes(version=version, scheduler=ON)) is not there


# -- the scheduler's name -------------------------------------------------------------------------------------------


def test_pods_get_the_name_on_request_only(chart: Chart) -> None:
    assert not [one for one in chart.render(scheduler=ON) if one["kind"].startswith("Mutating")]
    objects = chart.render(scheduler=ON | {"name": "mine", "setSchedulerName": True})
    check("1.36", objects)
    spec = find(objects, "MutatingAdmissionPolicy", f"{NAME}-name")["spec"]
    assert "schedulerName: 'mine'" in str(spec["mutations"])
    asked = str(spec["matchConditions"])
    assert [name for name in RESOURCES if f"'{name}'" not in asked] == []
    assert find(objects, "MutatingAdmissionPolicyBinding", f"{NAME}-name")["spec"]["policyName"] == f"{NAME}-name"


@pytest.mark.parametrize("version", ["1.30", "1.36"])
def test_the_scheduler_is_removed_with_one_value_also_where_pods_got_its_name(chart: Chart, version: str) -> None:
    """As `helm upgrade --reuse-values --set scheduler.enabled=false` does."""
    off = {"enabled": False, "setSchedulerName": True}
    assert [one for one in chart.render(version=version, scheduler=off) if NAME in one["metadata"]["name"]] == []
    assert "scheduler.setSchedulerName has no effect" in chart.notes(version=version, scheduler=off)


@pytest.mark.parametrize(
    ("version", "scheduler", "expected"),
    [
        ("1.35", {"enabled": True, "setSchedulerName": True}, "scheduler.setSchedulerName needs Kubernetes 1.36"),
        ("1.36", {"name": "default-scheduler"}, "/scheduler/name"),
        ("1.36", {"name": "a b"}, "/scheduler/name"),
        ("1.36", {"replicas": 0}, "/scheduler/replicas"),
        ("1.36", {"settings": {"listen": ":1"}}, "'listen' not allowed"),
        ("1.36", {"settings": {"policy": "random"}}, "/scheduler/settings/policy"),
        ("1.36", {"kubeScheduler": {"digest": "sha256:1"}}, "/scheduler/kubeScheduler/digest"),
        ("1.36", {"serviceAccount": {"name": "a b"}}, "/scheduler/serviceAccount/name"),
        ("1.36", ON | {"serviceAccount": {"create": False}}, "scheduler.serviceAccount.name names no account"),
        ("1.36", ON | {"serviceAccount": {"name": "gpuagent"}}, "the account of the agents"),
    ],
)
def test_values_that_are_wrong_are_refused_by_name(
    chart: Chart, version: str, scheduler: dict[str, Any], expected: str
) -> None:
    assert expected in chart.refusal(version=version, scheduler=scheduler)


@pytest.mark.parametrize(
    ("settings", "evicts", "reads_budgets"),
    [
        ({}, False, False),
        ({"defragment-moves": "off"}, False, False),
        ({"defragment-moves": 2}, True, True),
    ],
)
def test_only_a_setting_that_moves_pods_gives_the_right_to(
    chart: Chart, settings: dict[str, Any], evicts: bool, reads_budgets: bool
) -> None:
    objects = chart.render(scheduler=ON | {"settings": settings})
    rules = find(objects, "ClusterRole", NAME)["rules"]
    allowed = {resource for rule in rules for resource in rule["resources"]}
    assert ("pods/eviction" in allowed, "poddisruptionbudgets" in allowed) == (evicts, reads_budgets)


def test_the_schedulers_pods_take_affinity_and_its_account_annotations(chart: Chart) -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    of_nodes = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    account = {"annotations": {"example.com/role": "scheduler"}}
    values = {"enabled": True, "affinity": {"nodeAffinity": of_nodes}, "serviceAccount": account}
    objects = chart.render(scheduler=values)
    assert find(objects, "ServiceAccount", "gpu-scheduler")["metadata"]["annotations"] == account["annotations"]
    affinity = find(objects, "Deployment", "gpu-scheduler")["spec"]["template"]["spec"]["affinity"]
    assert affinity["nodeAffinity"] == of_nodes
    assert "preferredDuringSchedulingIgnoredDuringExecution" in affinity["podAntiAffinity"]
    apart: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    replaced = chart.render(scheduler={"enabled": True, "affinity": apart})
    assert find(replaced, "Deployment", "gpu-scheduler")["spec"]["template"]["spec"]["affinity"] == apart
