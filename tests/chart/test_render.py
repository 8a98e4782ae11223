"""What the chart becomes, and what it refuses."""

import argparse
import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError  # type: ignore[import-untyped]
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.settings import settings as config
from manifests.render import CHART, FOLDER, PLAIN, plain
from release.chart import published
from release.release_checks import VERSION
from tests.chart.conftest import HELM, Chart, containers, find

ROOT = Path(__file__).parents[2]
OLDER_SCHEMAS = ROOT / "build" / "schemas-1.18" / "kubernetes_validate" / "kubernetes-json-schema"
OLDER = [f"1.{minor}" for minor in range(18, 25)]
VERSIONS = OLDER + [f"1.{minor}" for minor in range(25, 38)]
OLDER_PLAIN = {"gpuagent-1.18.yaml": range(18, 19), "gpuagent-1.19-to-1.29.yaml": range(19, 25)}

DECISIONS = "gpu-decisions"
RESIZES = "gpu-mem-limits"
OTHER_AGENT = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "other-agent"}}}
EVERYTHING: dict[str, Any] = {
    "commonLabels": {"owner": "platform"},
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["regcred"]},
    "imagePullSecrets": [{"name": "regcred"}, {"name": "mirror"}, "other"],
    "serviceAccount": {"name": "gpu-account", "annotations": {"note": "account"}},
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [OTHER_AGENT]}},
    "podSecurityContext": {"runAsUser": 0, "runAsNonRoot": False, "supplementalGroups": [44]},
    "updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}},
    "extraVolumes": [{"name": "certificates", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/ssl/certs", "readOnly": True}],
    "settings": {"memory-unit": "256MiB", "max-pods-per-gpu": 10, "settle": 0.5, "core-mem-both": False},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "nodeAffinity": [{"key": "pool", "operator": "In", "values": ["gpu"]}],
    "annotations": {"note": "daemonset"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}],
    "seLinuxOptions": {"type": "spc_t"},
    "driver": {
        "runtimeClassName": "nvidia",
        "createRuntimeClass": True,
        "libraries": "/home/kubernetes/bin/nvidia/lib64",
        "programs": "/opt/nv",
    },
    "networkPolicy": {
        "enabled": True,
        "from": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
            {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
            {"ipBlock": {"cidr": "192.0.2.0/28", "except": ["192.0.2.1/32"]}},
        ],
    },
    "podLabels": {"team": "ml"},
    "podAnnotations": {"note": "yes"},
    "startupTaint": "gpuagent/starting",
    "admissionPolicy": {"decisions": "create", "decisionWriters": ["system:node-agent"]},
    "metrics": {
        "perContainerUse": True,
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
    "limits": {"enabled": True, "podsCgroup": "kubelet.slice/kubelet-kubepods.slice"},
    "mps": {"enabled": True, "exclusive": True, "nodeSelector": {"gpus": "mps-only"}},
    "cgpu": {"enabled": True, "image": "registry.example.com/cgpu:1.5.10", "sha256": "0" * 64, "accept": ["cgroup"]},
}
SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("kube-system", {}),
    "everything": ("gpu", EVERYTHING),
    "nothing": (
        "kube-system",
        {
            "settings": {"fence-file": "off"},
            "tolerations": [],
            "priorityClassName": "",
            "hostNetwork": True,
            "rbac": {"configMaps": False, "podAnnotations": False},
            "admissionPolicy": {"enabled": False},
            "mps": {"enabled": True, "daemon": False},
        },
    ),
}


def check(version: str, objects: list[dict[str, Any]]) -> None:
    """Against the version's schemas, unknown fields refused. The Prometheus operator's kinds have none in Kubernetes."""
    validate = validate_older if version in OLDER else kubernetes_validate.validate
    for one in objects:
        if not one["apiVersion"].startswith("monitoring.coreos.com/"):
            validate(one, version, strict=True)


def validate_older(one: dict[str, Any], version: str, *, strict: bool) -> None:
    """As `kubernetes_validate`, whose code of those versions needs libraries that are no more."""
    folder = OLDER_SCHEMAS / f"v{version}.0-local{'-strict' if strict else ''}"
    group, _, api = one["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (one["kind"].lower(), group.partition(".")[0], api)))
    schema = json.loads((folder / f"{name}.json").read_text())
    Draft202012Validator(schema, registry=definitions(folder)).validate(one)


@cache
def definitions(folder: Path) -> Registry[Any]:
    found = json.loads((folder / "_definitions.json").read_text())
    registry: Registry[Any] = Registry().with_resource("_definitions.json", DRAFT202012.create_resource(found))
    return registry


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", SETS)
def test_every_version_has_a_schema_for_what_it_gets(chart: Chart, version: str, values: str) -> None:
    namespace, chosen = SETS[values]
    check(version, chart.render(version=version, namespace=namespace, **chosen))


@pytest.mark.parametrize(
    ("name", "version"), [(name, f"1.{minor}") for name, minors in OLDER_PLAIN.items() for minor in minors]
)
def test_every_older_version_has_a_schema_for_its_plain_yaml(name: str, version: str) -> None:
    """The unit tests do it for the versions since."""
    check(version, [one for one in yaml.safe_load_all((FOLDER / name).read_text()) if one])


def test_an_older_version_is_refused(chart: Chart) -> None:
    assert "requires kubeVersion: >=1.18.0-0" in chart.refusal(version="1.17.17")


@pytest.mark.parametrize("version", ["1.18", "1.24", "1.30", "1.37"])
def test_a_wrong_field_is_noticed(chart: Chart, version: str) -> None:
    objects = chart.render(version=version)
    find(objects, "DaemonSet", "gpuagent")["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(ValidationError, match="livenesProbe"):
        check(version, objects)


@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_yaml_is_what_helm_makes_of_the_chart(name: str) -> None:
    assert (FOLDER / name).read_text() == plain(str(HELM), name), "run `make manifests`"


@pytest.mark.parametrize("values", SETS)
def test_helm_has_nothing_to_say(chart: Chart, values: str) -> None:
    done = chart.lint(**SETS[values][1])
    assert done.returncode == 0, done.stdout


# -- rights ---------------------------------------------------------------------------------------------------------


def test_nothing_is_privileged_but_what_changes_nodes(chart: Chart) -> None:
    privileged = {
        values: {
            name
            for name, one in containers(chart.render(namespace=SETS[values][0], **SETS[values][1])).items()
            if one["securityContext"].get("privileged")
        }
        for values in SETS
    }
    assert privileged == {"default": set(), "everything": {"install", "policy", "mps-control"}, "nothing": set()}
    assert not containers(chart.render(mps={"enabled": True}))["mps-control"]["securityContext"]["privileged"]


@pytest.mark.parametrize("values", SETS)
def test_the_agent_is_root_without_rights(chart: Chart, values: str) -> None:
    objects = chart.render(namespace=SETS[values][0], **SETS[values][1])
    agent = find(objects, "DaemonSet", "gpuagent")["spec"]["template"]["spec"]
    assert agent["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    container = containers(objects)["gpuagent"]
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert agent.get("hostPID", False) is (values == "everything")
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    mps = {"/var/run/nvidia-gpu/nvidia-mps"} if values != "default" else set()
    limits = {"/run/gpuagent-limits"} if values == "everything" else set()
    assert written == {"/var/lib/kubelet/device-plugins", "/var/lib/gpuagent"} | mps | limits


@pytest.mark.parametrize("version", ["1.18.20", "v1.18.8-aliyun.1"])
def test_seccomp_is_an_annotation_where_it_is_no_field(chart: Chart, version: str) -> None:
    """Kubernetes 1.18 would drop the field, and its kubectl refuses it."""
    objects = chart.render(version=version, namespace="gpu", **EVERYTHING)
    assert "seccompProfile" not in str(objects)
    templates = {one["metadata"]["name"]: one["spec"]["template"] for one in objects if one["kind"] == "DaemonSet"}
    key = "seccomp.security.alpha.kubernetes.io"
    assert {name: one["metadata"]["annotations"] for name, one in templates.items()} == {
        "gpuagent": {"note": "yes", f"{key}/pod": "runtime/default"},
        "mps-control": {f"{key}/pod": "runtime/default"},
        "cgpu-installer": {f"container.{key}/installed": "runtime/default"},
    }
    assert key not in str(chart.render(version="1.19", namespace="gpu", **EVERYTHING))
    chosen = chart.render(version=version, podAnnotations={f"{key}/pod": "localhost/own"})
    assert agent_pod(chosen)["metadata"]["annotations"] == {f"{key}/pod": "localhost/own"}


def test_the_rights_are_no_more_than_these(chart: Chart) -> None:
    objects = chart.render()
    rules = {
        (tuple(rule["resources"]), tuple(rule["verbs"]))
        for one in objects
        if one["kind"] in ("ClusterRole", "Role")
        for rule in one["rules"]
    }
    assert rules == {
        (("nodes",), ("list", "watch", "patch")),
        (("nodes/status",), ("patch",)),
        (("pods",), ("list", "watch", "patch")),
        (("events",), ("create", "patch")),
        (("configmaps",), ("get", "create", "patch", "delete")),
    }
    assert not [one for one in chart.render(rbac={"configMaps": False}) if one["kind"] == "Role"]


@pytest.mark.parametrize(
    ("version", "enabled", "there"),
    [
        ("1.18.20", "auto", False),
        ("1.29.15", "auto", False),
        ("v1.30.0", "auto", True),
        ("v1.31.1-aliyun.1", "auto", True),
        ("v1.30.5-gke.1014001", "auto", True),
        ("1.36", False, False),
        ("1.29", True, True),
    ],
)
def test_policies_are_there_where_the_api_server_has_them(
    chart: Chart, version: str, enabled: object, there: bool
) -> None:
    objects = chart.render(version=version, admissionPolicy={"enabled": enabled})
    kinds = [one["kind"] for one in objects]
    assert kinds.count("ValidatingAdmissionPolicy") == kinds.count("ValidatingAdmissionPolicyBinding") == 6 * there


def test_policies_are_about_the_service_account_where_it_is(chart: Chart) -> None:
    objects = chart.render(namespace="gpu")
    account = "system:serviceaccount:gpu:gpuagent"
    for one in objects:
        # These two are about everybody else.
        if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] not in {DECISIONS, RESIZES}:
            assert one["spec"]["matchConditions"][0]["expression"] == f"request.userInfo.username == '{account}'"
    (resizes,) = find(objects, "ValidatingAdmissionPolicy", RESIZES)["spec"]["validations"]
    assert f"request.userInfo.username in ['{account}']" in resizes["expression"]
    role = find(objects, "RoleBinding", "gpuagent")
    assert (role["metadata"]["namespace"], role["subjects"][0]["namespace"]) == ("kube-system", "gpu")


def decision_policy(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Its spec."""
    return dict(find(objects, "ValidatingAdmissionPolicy", DECISIONS)["spec"])


def test_decisions_are_kept_from_updates_by_default_and_from_creations_on_request(chart: Chart) -> None:
    for how, operations in (("update", [["UPDATE"]]), ("create", [["UPDATE"], ["CREATE"]])):
        objects = chart.render(admissionPolicy={"decisions": how})
        rules = decision_policy(objects)["matchConstraints"]["resourceRules"]
        assert [rule["operations"] for rule in rules] == operations
        # Through each of them, the API server takes annotations.
        assert {"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"} == set(rules[0]["resources"])
        find(objects, "ValidatingAdmissionPolicyBinding", DECISIONS)
    assert decision_policy(chart.render()) == decision_policy(chart.render(admissionPolicy={"decisions": "update"}))


def test_without_the_policy_of_decisions_the_agents_own_policies_stay(chart: Chart) -> None:
    objects = chart.render(admissionPolicy={"decisions": "none"})
    policies = [one["metadata"]["name"] for one in objects if one["kind"] == "ValidatingAdmissionPolicy"]
    assert policies
    assert DECISIONS not in policies


def test_the_agent_and_the_operators_writers_are_named(chart: Chart) -> None:
    objects = chart.render(namespace="gpu", admissionPolicy={"decisionWriters": ["system:node-agent", "acs:scheduler"]})
    (rule,) = decision_policy(objects)["validations"]
    (names,) = re.findall(r"request.userInfo.username in (\[[^]]*\])", rule["expression"])
    assert re.findall(r"'([^']+)'", names) == [
        "system:serviceaccount:gpu:gpuagent",
        "system:node-agent",
        "acs:scheduler",
    ]


def pod_rights(objects: list[dict[str, Any]]) -> set[str]:
    rules = find(objects, "ClusterRole", "gpuagent")["rules"]
    return {verb for rule in rules if rule["resources"] == ["pods"] for verb in rule["verbs"]} - {"list", "watch"}


@pytest.mark.parametrize(
    ("version", "policies", "safe"),
    [
        ("1.18", "auto", False),
        ("1.24", "auto", False),
        ("1.29", "auto", False),
        ("1.30", "auto", True),
        ("1.36", False, False),
    ],
)
def test_rights_on_pods_are_there_where_policies_narrow_them(
    chart: Chart, version: str, policies: object, safe: bool
) -> None:
    """And the agent tries nothing that it has no right to."""
    values: dict[str, Any] = {"version": version, "admissionPolicy": {"enabled": policies}}
    objects = chart.render(**values)
    assert pod_rights(objects) == ({"patch"} if safe else set())
    assert settings_of(objects).annotate_pods == safe
    for chosen in (True, False):
        objects = chart.render(**values, rbac={"podAnnotations": chosen})
        assert pod_rights(objects) == ({"patch"} if chosen else set())
        assert settings_of(objects).annotate_pods == chosen


def test_an_agent_with_the_right_may_be_set_to_annotate_nothing(chart: Chart) -> None:
    assert not settings_of(chart.render(settings={"annotate-pods": False})).annotate_pods


def test_the_notes_say_what_is_lost_without_policies_and_what_is_risked(chart: Chart) -> None:
    assert "admission policies" not in chart.notes()
    lost = chart.notes(version="1.29.3")
    assert "Kubernetes v1.29.3 has none" in lost
    assert "rbac.podAnnotations is off" in lost
    assert "WARNING" not in lost
    risked = chart.notes(rbac={"podAnnotations": True}, admissionPolicy={"enabled": False})
    assert "admissionPolicy.enabled is false" in risked
    assert "can change labels, annotations and images of every pod" in risked


# -- memory limits -----------------------------------------------------------------------------------------------------

LIMITS: dict[str, Any] = {"limits": {"enabled": True}}


def test_without_limits_nothing_of_them_is_installed(chart: Chart) -> None:
    text = str(chart.render())
    assert "memory-limits" not in text
    assert "/sys/fs/cgroup" not in text
    assert "SYS_ADMIN" not in text


def test_the_helper_alone_has_a_capability_and_the_agent_none(chart: Chart) -> None:
    found = containers(chart.render(**LIMITS))
    helper, agent = found["memory-limits"], found["gpuagent"]
    assert helper["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN", "SYS_NICE"]},
    }
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert agent["securityContext"] == containers(chart.render())["gpuagent"]["securityContext"]


def mounts_of(container: dict[str, Any]) -> dict[str, bool]:
    """Path to whether it can be written."""
    return {mount["mountPath"]: not mount.get("readOnly") for mount in container["volumeMounts"]}


def test_the_helper_sees_cgroups_and_its_socket_only_and_the_agent_cannot_write_cgroups(chart: Chart) -> None:
    objects = chart.render(**LIMITS)
    found = containers(objects)
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    helper = mounts_of(found["memory-limits"])
    assert helper == {"/sys/fs/cgroup": True, "/run/gpuagent-limits": True, token: False}
    agent = mounts_of(found["gpuagent"])
    assert (agent["/sys/fs/cgroup"], agent["/run/gpuagent-limits"], token in agent) == (False, True, False)
    volumes = {volume["name"]: volume for volume in agent_pod(objects)["spec"]["volumes"]}
    (hidden,) = [mount for mount in found["memory-limits"]["volumeMounts"] if mount["mountPath"] == token]
    # Kubernetes mounts no token where a mount is already.
    assert volumes[hidden["name"]] == {"name": hidden["name"], "emptyDir": {}}


def test_both_containers_learn_their_pods_uid_and_have_the_drivers_environment(chart: Chart) -> None:
    found = containers(chart.render(driver={"libraries": "/opt/nv/lib"}, **LIMITS))
    variables = [{one["name"]: one for one in found[name]["env"]} for name in ("gpuagent", "memory-limits")]
    for name in ("POD_UID", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "LD_LIBRARY_PATH"):
        assert variables[0][name] == variables[1][name]
    assert variables[0]["POD_UID"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert "/usr/local/nvidia/lib64" in mounts_of(found["memory-limits"])


def test_the_helper_is_told_where_pods_are_and_of_a_simulated_box(chart: Chart) -> None:
    assert "args" not in containers(chart.render(**LIMITS))["memory-limits"]
    limits = LIMITS["limits"] | {"podsCgroup": r"kubelet.slice/a\x2db-kubepods.slice"}
    found = containers(chart.render(settings={"simulate": "dgx-a100"}, limits=limits))
    assert found["memory-limits"]["args"] == [f"--pods-cgroup={limits['podsCgroup']}", "--simulate=dgx-a100"]


@pytest.mark.parametrize(("version", "host_users"), [("1.18", None), ("1.24", None), ("1.25", True), ("1.36", True)])
def test_the_pod_stays_in_the_hosts_user_namespace(chart: Chart, version: str, host_users: object) -> None:
    """With hostUsers: false its root could set no limits."""
    assert agent_pod(chart.render(version=version, **LIMITS))["spec"].get("hostUsers") is host_users
    assert "hostUsers" not in agent_pod(chart.render(version=version))["spec"]


def test_where_only_privileged_containers_open_the_driver_the_helper_is_one_too(chart: Chart) -> None:
    context = containers(chart.render(driver={"privileged": True}, **LIMITS))["memory-limits"]["securityContext"]
    assert context == {"readOnlyRootFilesystem": True, "privileged": True}


@pytest.mark.parametrize(
    ("version", "values", "there"),
    [
        ("1.29", LIMITS, False),
        ("1.30", LIMITS, True),
        ("1.36", LIMITS, True),
        ("1.36", LIMITS | {"admissionPolicy": {"enabled": False}}, False),
        ("1.36", {}, False),
    ],
)
def test_the_policy_against_forged_limits_comes_with_them(
    chart: Chart, version: str, values: dict[str, Any], there: bool
) -> None:
    objects = chart.render(version=version, **values)
    names = [one["metadata"]["name"] for one in objects if one["kind"].startswith("ValidatingAdmissionPolicy")]
    assert names.count("gpu-memory-limits") == 2 * there
    warned = "no policy refuses pods that set NVIDIA_GPU_MEMORY_LIMIT" in chart.notes(version=version, **values)
    assert warned is (bool(values) and not there)


# -- network ---------------------------------------------------------------------------------------------------------


def test_a_network_policy_is_made_on_request_and_lets_in_what_is_named(chart: Chart) -> None:
    assert not [one for one in chart.render() if one["kind"] == "NetworkPolicy"]
    allowed = EVERYTHING["networkPolicy"]["from"]
    objects = chart.render(http={"port": 8080}, networkPolicy={"enabled": True, "from": allowed})
    spec = find(objects, "NetworkPolicy", "gpuagent")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"ports": [{"port": 8080, "protocol": "TCP"}], "from": allowed}]
    chosen = spec["podSelector"]["matchLabels"]
    assert chosen.items() <= agent_pod(objects)["metadata"]["labels"].items()
    others = [one for one in objects if one["kind"] == "DaemonSet" and one["metadata"]["name"] != "gpuagent"]
    assert not [one for one in others if chosen.items() <= one["spec"]["template"]["metadata"]["labels"].items()]


def test_a_network_policy_without_sources_lets_nothing_in(chart: Chart) -> None:
    """In a NetworkPolicy a rule with an empty list of sources would let in everything."""
    spec = find(chart.render(networkPolicy={"enabled": True}), "NetworkPolicy", "gpuagent")["spec"]
    assert spec["ingress"] == []


# -- settings -------------------------------------------------------------------------------------------------------


def agent_pod(objects: list[dict[str, Any]]) -> Any:
    return find(objects, "DaemonSet", "gpuagent")["spec"]["template"]


def settings_of(objects: list[dict[str, Any]]) -> config.Settings:
    """What the agent makes of its container's arguments, in which kubelet expands $(NAME) and $$."""
    container = containers(objects)["gpuagent"]
    assert not [text for text in container["args"] if "$" in text.replace("$$", "")]
    parser = argparse.ArgumentParser()
    config.TABLE.add_flags(parser)
    flags = parser.parse_args([text.replace("$$", "$") for text in container["args"]])
    return config.load(vars(flags), {"NODE_NAME": "n1"})


def test_settings_reach_the_agent_as_they_were_given(chart: Chart) -> None:
    given = {
        "fence-file": '/etc/a "b" \\ <&> $(NODE_NAME) $$ ü/f.json',
        "max-pods-per-gpu": 1000000,
        "settle": 0.25,
        "mps-exclusive": False,
        "ignore-xids": "63,94",
        "memory-unit": "256MiB",
    }
    objects = chart.render(settings=given, mps={"enabled": True, "directory": "/run/mps"}, http={"port": 8080})
    found = settings_of(objects)
    assert found == config.load(
        {name.replace("-", "_"): str(value) for name, value in given.items()}
        | {"http_address": ":8080", "mps_start": "false", "mps_pipe_dir": "/run/mps", "live_resize": "true"},
        {"NODE_NAME": "n1"},
    )
    assert found.fence_file == Path(str(given["fence-file"]))


def test_a_pod_reads_the_settings_that_it_was_rolled_out_with(chart: Chart) -> None:
    """Nothing that it reads them from changes under it: a pod that restarts amid an upgrade is the one of before."""
    objects = chart.render(settings={"settle": 3})
    spec = agent_pod(objects)["spec"]
    (container,) = spec["containers"]
    assert {key for volume in spec["volumes"] for key in volume} == {"name", "hostPath"}
    assert {key for one in container["env"] for key in one.get("valueFrom", ())} == {"fieldRef"}
    assert "envFrom" not in container
    assert "ConfigMap" not in {one["kind"] for one in objects}


def test_a_change_of_settings_changes_the_pod_and_nothing_else_does(chart: Chart) -> None:
    def pod(**values: Any) -> Any:
        return agent_pod(chart.render(**values))

    assert pod(settings={"settle": 3}) != pod()
    assert pod(policy=1, rbac={"configMaps": False}, networkPolicy={"enabled": True}) == pod()
    granted: dict[str, Any] = {"rbac": {"podAnnotations": True}, "liveResize": False}
    without = pod(liveResize=False)
    assert pod(version="1.24", **granted) == pod(admissionPolicy={"enabled": False}, **granted) == without


def test_the_agent_resizes_only_where_a_policy_keeps_tenants_from_it(chart: Chart) -> None:
    granted: dict[str, Any] = {"rbac": {"podAnnotations": True}}
    without_policy = (
        {"version": "1.24", **granted},
        {"admissionPolicy": {"enabled": False}, **granted},
        {"liveResize": False},
    )
    for values, resizes in ({}, True), *[(values, False) for values in without_policy]:
        objects = chart.render(**values)
        policies = [one["metadata"]["name"] for one in objects if one["kind"] == "ValidatingAdmissionPolicy"]
        assert (RESIZES in policies, settings_of(objects).live_resize) == (resizes, resizes), values


OWN_LABEL = {"app.kubernetes.io/name": "mine"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"polcy": 5}, "'polcy' not allowed"),
        ({"policy": 6}, "/policy"),
        ({"policy": "5"}, "/policy"),
        ({"settings": {"memory-unitt": "GiB"}}, "'memory-unitt' not allowed"),
        ({"settings": {"memory_unit": "GiB"}}, "'memory_unit' not allowed"),
        ({"settings": {"isolation": "hami"}}, "/settings/isolation"),
        ({"settings": {"settle": "soon"}}, "/settings/settle"),
        ({"settings": {"settle": 1e9}}, "/settings/settle"),
        ({"settings": {"memory-unit": "1.5GiB"}}, "/settings/memory-unit"),
        ({"settings": {"memory-unit": "0GiB"}}, "/settings/memory-unit"),
        ({"settings": {"core-step": 3}}, "/settings/core-step"),
        ({"settings": {"ignore-xids": "63;94"}}, "/settings/ignore-xids"),
        ({"settings": {"ignore-xids": "63,94", "fatal-xids": "31, 94"}}, "both name XID 94"),
        ({"settings": {"exclusive-resource": "gpu"}}, "/settings/exclusive-resource"),
        ({"settings": {"exclusive-resource": "aliyun.com/gpu"}}, "/settings/exclusive-resource"),
        ({"settings": {"exclusive-resource": "kubernetes.io/gpu"}}, "/settings/exclusive-resource"),
        ({"settings": {"simulate": "dgx-9"}}, "/settings/simulate"),
        ({"settings": {"http-address": ":1"}}, "'http-address' not allowed"),
        ({"settings": {"node-name": "n"}}, "'node-name' not allowed"),
        ({"cgpu": {"enabled": True}}, "/cgpu/image"),
        ({"image": {"repository": ""}}, "image.repository is not set"),
        ({"driver": {"createRuntimeClass": True}}, "driver.createRuntimeClass needs driver.runtimeClassName"),
        ({"extraEnv": [{"name": "NODE_NAME", "value": "other"}]}, "/extraEnv/0/name"),
        ({"nodeAffinity": [{"key": "pool", "operator": "Is"}]}, "/nodeAffinity/0/operator"),
        ({"mps": {"directory": "/" + "a" * 100}}, "/mps/directory"),
        ({"limits": {"enabled": "auto"}}, "/limits/enabled"),
        ({"limits": {"podsCgroup": "/sys/fs/cgroup/kubepods"}}, "/limits/podsCgroup"),
        ({"limits": {"podsCgroup": "kubepods/../.."}}, "/limits/podsCgroup"),
        ({"limits": {"enabled": True}, "paths": {"state": "/run/gpuagent-limits"}}, "two folders of the agent's pod"),
        ({"paths": {"kubelet": "/var/lib/kubelet/"}}, "/paths/kubelet"),
        ({"updateStrategy": {"maxUnavailable": 0}}, "/updateStrategy/maxUnavailable"),
        ({"updateStrategy": {"maxSurge": 1}}, "'maxSurge' not allowed"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "'maxSurge' not allowed"),
        ({"updateStrategy": {"type": "Recreate"}}, "/updateStrategy/type"),
        ({"nameOverride": "a b"}, "/nameOverride"),
        ({"nameOverride": "gpu-scheduler"}, "the name of another object of the chart"),
        ({"fullnameOverride": "mps-control"}, "the name of another object of the chart"),
        ({"serviceAccount": {"name": "gpu-scheduler"}}, "the agents would have its rights"),
        ({"image": {"repository": "registry:5000/gpuagent:0.1.0"}}, "leave out the tag"),
        ({"image": {"repository": "gpuagent@sha256:1"}}, "leave out the tag"),
        ({"affinity": None}, "missing property 'affinity'"),
        ({"mps": None}, "missing property 'mps'"),
        ({"podSecurityContext": {"foo": 1}}, "'foo' not allowed"),
        (
            {"commonLabels": {"app.kubernetes.io/component": "x"}},
            "commonLabels may not set app.kubernetes.io/component",
        ),
        ({"commonLabels": OWN_LABEL}, "commonLabels may not set app.kubernetes.io/name"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name names no account"),
        ({"podSecurityContext": {"runAsNonRoot": True}}, "/podSecurityContext/runAsNonRoot"),
        ({"podSecurityContext": {"runAsUser": 1000}}, "/podSecurityContext/runAsUser"),
        ({"affinity": {"nodeAfinity": {}}}, "'nodeAfinity' not allowed"),
        (
            {"extraVolumes": [{"name": "x"}], "extraVolumeMounts": [{"name": "x", "mountPath": "/var/lib/gpuagent"}]},
            "two folders of the agent's pod",
        ),
        (
            {"extraVolumeMounts": [{"name": "x", "mountPath": "/x"}]},
            "extraVolumes has no volume of that name: add {name: x",
        ),
        ({"extraVolumes": [{"name": "state"}]}, "a volume of the chart has: choose another name"),
        ({"extraVolumes": [{"name": "x"}, {"name": "x"}]}, "extraVolumes has the name x twice"),
        (
            {"commonLabels": {"my team": "ml"}},
            'commonLabels has the key "my team", which no label or annotation can have',
        ),
        ({"podLabels": {"team": "ml & data"}}, 'podLabels has team: "ml & data", which no label can have'),
        ({"podLabels": {"team": "a" * 64}}, "write at most 63 letters"),
        ({"metrics": {"podMonitor": {"labels": {"release": "a b"}}}}, "metrics.podMonitor.labels has release"),
        ({"scheduler": {"nodeSelector": {"Example.com/a": "b"}}}, 'scheduler.nodeSelector has the key "Example.com/a"'),
        ({"scheduler": {"podLabels": {"team": "a b"}}}, 'scheduler.podLabels has team: "a b"'),
        ({"scheduler": {"podAnnotations": {"a b": "x"}}}, 'scheduler.podAnnotations has the key "a b"'),
        (
            {"scheduler": {"enabled": True, "podLabels": OWN_LABEL}},
            "scheduler.podLabels may not set app.kubernetes.io/name",
        ),
        (
            {"scheduler": {"enabled": True, "podAnnotations": {"gpuagent.io/config": "x"}}},
            "scheduler.podAnnotations may not set gpuagent.io/config",
        ),
        ({"podAnnotations": {"a/b/c": "x"}}, 'podAnnotations has the key "a/b/c"'),
        ({"serviceAccount": {"annotations": {"-a": "x"}}}, 'serviceAccount.annotations has the key "-a"'),
        ({"resources": {"limits": {"memory": "1 GB"}}}, 'resources.limits.memory is "1 GB", which is not a quantity'),
        ({"mps": {"resources": {"requests": {"cpu": "-1"}}}}, "mps.resources.requests.cpu"),
        (
            {"scheduler": {"kubeScheduler": {"resources": {"limits": {"memory": "1GiB"}}}}},
            "scheduler.kubeScheduler.resources.limits.memory",
        ),
        (
            {"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
            "each series would come twice",
        ),
        ({"admissionPolicy": {"enabled": "no"}}, "/admissionPolicy/enabled"),
        ({"admissionPolicy": {"decisions": False}}, "/admissionPolicy/decisions"),
        ({"admissionPolicy": {"decisionWriters": ["x' || true"]}}, "/admissionPolicy/decisionWriters/0"),
        ({"rbac": {"podAnnotations": "no"}}, "/rbac/podAnnotations"),
        ({"rbac": {"podAnnotations": False}, "settings": {"annotate-pods": True}}, "set rbac.podAnnotations to true"),
        ({"networkPolicy": {"from": [{}]}}, "/networkPolicy/from/0"),
        ({"networkPolicy": {"from": [{"cidr": "192.0.2.0/28"}]}}, "'cidr' not allowed"),
        ({"networkPolicy": {"from": [{"ipBlock": {}}]}}, "/networkPolicy/from/0/ipBlock"),
        ({"networkPolicy": {"enabled": True}, "hostNetwork": True}, "no effect on pods that use the node's network"),
        ({"nodeLabels": []}, "/nodeLabels"),
        ({"startupTaint": "a b"}, "/startupTaint"),
        ({"startupTaint": "node.kubernetes.io/not-ready"}, "/startupTaint"),
        ({"image": {"digest": "sha256:1"}}, "/image/digest"),
        ({"settings": {"fence-file": "OFF"}}, "/settings/fence-file"),
        ({"settings": {"fence-file": "/fence.json"}}, "/settings/fence-file"),
        ({"settings": {"fence-file": "/a, readOnly: false/f.json"}}, "/settings/fence-file"),
        ({"settings": {"fence-file": "/var/lib/kubelet/device-plugins/f.json"}}, "two folders of the agent's pod"),
        ({"mps": {"enabled": True, "directory": "/var/lib/gpuagent"}}, "two folders of the agent's pod"),
        ({"http": {"port": 80}}, "/http/port"),
        ({"podLabels": OWN_LABEL}, "podLabels may not set app.kubernetes.io/name"),
        ({"podLabels": {"app.kubernetes.io/component": "x"}}, "podLabels may not set app.kubernetes.io/component"),
        (
            {"metrics": {"podMonitor": {"enabled": True, "labels": OWN_LABEL}}},
            "metrics.podMonitor.labels may not set app.kubernetes.io/name",
        ),
        (
            {"metrics": {"prometheusRule": {"enabled": True, "labels": OWN_LABEL}}},
            "metrics.prometheusRule.labels may not set app.kubernetes.io/name",
        ),
        (
            {"metrics": {"dashboard": {"enabled": True, "labels": OWN_LABEL}}},
            "metrics.dashboard.labels may not set app.kubernetes.io/name",
        ),
        ({"mps": {"enabled": True, "exclusive": True}}, "mps.exclusive needs mps.nodeSelector"),
        ({"mps": {"exclusive": True, "nodeSelector": {"a": "b"}}}, "mps.exclusive needs mps.enabled"),
        (
            {"mps": {"enabled": True, "daemon": False, "exclusive": True, "nodeSelector": {"a": "b"}}},
            "mps.exclusive needs mps.enabled and mps.daemon",
        ),
    ],
)
def test_values_that_are_wrong_are_refused_by_name(chart: Chart, values: dict[str, Any], expected: str) -> None:
    assert expected in chart.refusal(**values)


@pytest.mark.parametrize(
    ("values", "instead"),
    [
        ({"securityContext": {"privileged": True}}, "fields of the pod go into podSecurityContext"),
        ({"extraArgs": ["--policy=binpack"]}, "write settings of the agent into settings"),
        ({"env": []}, "write variables into extraEnv"),
        ({"serviceMonitor": {"enabled": True}}, "write it below metrics, as metrics.serviceMonitor.enabled"),
        ({"replicaCount": 2}, "the scheduler has scheduler.replicas"),
        ({"extraEnv": [{"name": "NODE_NAME", "value": "x"}]}, "another variable: the chart sets this one"),
        ({"startupTaint": "node.kubernetes.io/not-ready"}, "a taint of your own, such as example.com/gpu-starting"),
        ({"limits": {"podsCgroup": "a/../b"}}, "a path below /sys/fs/cgroup without . and .."),
        ({"scheduler": {"name": "default-scheduler"}}, "another name, such as gpu-scheduler"),
        ({"settings": {"exclusive-resource": "aliyun.com/gpu"}}, "a resource of another name, such as nvidia.com/gpu"),
    ],
)
def test_what_the_schema_refuses_has_a_sentence_with_what_to_write(
    chart: Chart, values: dict[str, Any], instead: str
) -> None:
    said = chart.refusal(**values)
    assert instead in said
    assert "'not' failed" not in said


def test_labels_annotations_and_quantities_that_kubernetes_takes_are_taken(chart: Chart) -> None:
    objects = chart.render(
        commonLabels={"example.com/team_a.b": "", "x": "A-1_b.c"},
        podAnnotations={"Example.com/Note": "any text: at all"},
        resources={"requests": {"cpu": 0.5, "memory": "1e8"}, "limits": {"cpu": "1500m", "memory": "+.5Gi"}},
    )
    check("1.36", objects)


def test_cdi_names_are_refused_where_no_kubelet_hands_them_on(chart: Chart) -> None:
    chosen: dict[str, Any] = {"settings": {"device-strategy": "cdi"}}
    assert "settings.device-strategy=cdi needs Kubernetes 1.28" in chart.refusal(version="1.27", **chosen)
    assert settings_of(chart.render(version="1.28", **chosen)).device_strategy is DeviceStrategy.CDI


@pytest.mark.parametrize(
    "settings",
    [
        {"memory-unit": "GiB", "core-step": 10, "exclusive-resource": "nvidia.com/gpu", "ignore-xids": "63, 94"},
        {"memory-unit": "256MiB", "core-step": 100, "exclusive-resource": "", "ignore-xids": "", "fatal-xids": "31"},
        {"simulate": "t4", "settle": 0.0000001, "fatal-xids": "4", "ignore-xids": "94"},
        {"simulate": "/opt/box.toml", "settle": 0},
    ],
)
def test_helm_takes_what_the_agent_takes(chart: Chart, settings: dict[str, Any]) -> None:
    assert settings_of(chart.render(settings=settings, startupTaint="example.com/starting"))


def test_a_fence_file_in_the_state_directory_needs_no_mount_of_its_own(chart: Chart) -> None:
    found = chart.render(settings={"fence-file": "/var/lib/gpuagent/fence.json"})
    (container,) = find(found, "DaemonSet", "gpuagent")["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert len(mounts) == len(container["volumeMounts"])
    assert mounts["/var/lib/gpuagent"] is False


def test_the_agent_tolerates_the_taint_that_it_takes_off(chart: Chart) -> None:
    found = chart.render(startupTaint="example.com/starting", tolerations=[{"key": "a", "operator": "Exists"}])
    tolerations = find(found, "DaemonSet", "gpuagent")["spec"]["template"]["spec"]["tolerations"]
    assert {"key": "example.com/starting", "operator": "Exists"} in tolerations


def test_a_chart_above_this_one_may_use_it(chart: Chart) -> None:
    values: dict[str, Any] = {"global": {"registry": "x"}}
    assert chart.render(**values)


@pytest.mark.parametrize("name", ["true", "1e3", "0x10", "123"])
def test_names_that_yaml_would_take_for_something_else_stay_texts(chart: Chart, name: str) -> None:
    objects = chart.render(
        **EVERYTHING | {"priorityClassName": name, "driver": {"runtimeClassName": name}}, namespace=name, release=name
    )
    check("1.36", objects)
    spaces = {one["metadata"].get("namespace", name) for one in objects}
    assert spaces == {name, "kube-system"}
    quota = find(objects, "ResourceQuota", "gpuagent")
    assert quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"] == [name]
    assert agent_pod(objects)["spec"]["priorityClassName"] == agent_pod(objects)["spec"]["runtimeClassName"] == name
    assert agent_pod(objects)["metadata"]["labels"]["app.kubernetes.io/instance"] == name


@pytest.mark.parametrize("odd", ["a: b", "]}", "x #y", '"', "&a", "*a"])
def test_a_value_stays_within_its_place(chart: Chart, odd: str) -> None:
    path = "/" + odd.replace(" ", "")
    objects = chart.render(
        image={"repository": odd, "tag": odd},
        driver={"libraries": path, "programs": path},
        paths={"kubelet": path, "state": path + "/state"},
        priorityClassName=odd,
        mps={"enabled": True, "directory": path + "/mps"},
        cgpu={"enabled": True, "image": odd, "package": path, "accept": [odd]},
        namespace="gpu",
    )
    check("1.36", objects)
    found = containers(objects)
    assert {found[name]["image"] for name in ("gpuagent", "mps-control", "installed")} == {f"{odd}:{odd}"}
    assert {found[name]["image"] for name in ("install", "policy")} == {odd}
    assert {f"--package={path}", f"--accept={odd}"} <= set(found["install"]["args"])
    assert found["mps-control"]["args"] == [f"--pipe-dir={path}/mps"]
    assert {"name": "pipes", "mountPath": f"{path}/mps"} in found["mps-control"]["volumeMounts"]
    volumes = {one["name"]: one.get("hostPath") for one in agent_pod(objects)["spec"]["volumes"]}
    assert volumes["driver-libraries"] == volumes["driver-programs"] == {"path": path, "type": "Directory"}
    assert find(objects, "ResourceQuota", "gpuagent")["spec"]["scopeSelector"]["matchExpressions"][0]["values"] == [odd]


def test_labels_of_ones_own_come_beside_the_charts(chart: Chart) -> None:
    objects = chart.render(podLabels={"app.kubernetes.io/part-of": "ml", "on": "true"}, podAnnotations={"a": "b: c"})
    agent = find(objects, "DaemonSet", "gpuagent")
    pod = agent["spec"]["template"]["metadata"]
    assert pod["annotations"] == {"a": "b: c"}
    assert pod["labels"].items() >= {"app.kubernetes.io/part-of": "ml", "on": "true"}.items()
    assert pod["labels"].items() >= agent["spec"]["selector"]["matchLabels"].items()


def test_labels_and_annotations_of_the_schedulers_pods_come_beside_the_charts(chart: Chart) -> None:
    own = {"enabled": True, "podLabels": {"team": "ml"}, "podAnnotations": {"sidecar.istio.io/inject": "false"}}
    scheduler = find(chart.render(scheduler=own), "Deployment", "gpu-scheduler")
    pod = scheduler["spec"]["template"]["metadata"]
    assert pod["labels"].items() >= {"team": "ml", **scheduler["spec"]["selector"]["matchLabels"]}.items()
    assert pod["annotations"].keys() >= {"sidecar.istio.io/inject", "gpuagent.io/config"}


# -- names that other charts have ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nameOverride", "fullnameOverride"])
def test_an_operator_renames_the_daemon_set_and_its_account_and_no_label(chart: Chart, value: str) -> None:
    values: dict[str, Any] = {value: "gpu-agent"}
    objects = chart.render(**values)
    agent = find(objects, "DaemonSet", "gpu-agent")
    assert agent["spec"]["template"]["spec"]["serviceAccountName"] == "gpu-agent"
    assert find(objects, "ServiceAccount", "gpu-agent")
    find(objects, "ClusterRole", "gpuagent")  # so that a second release is refused
    usual = find(chart.render(), "DaemonSet", "gpuagent")
    assert agent["spec"]["selector"] == usual["spec"]["selector"]
    assert agent["spec"]["template"]["metadata"] == usual["spec"]["template"]["metadata"]
    assert "rollout status daemonset/gpu-agent" in chart.notes(**values)


def accounts(objects: list[dict[str, Any]]) -> set[str]:
    """Service accounts of the agent that bindings give rights, and that policies are about."""
    subjects = [
        subject for one in objects if one["kind"].endswith("RoleBinding") for subject in one.get("subjects", ())
    ]
    users = re.findall(r"system:serviceaccount:kube-system:([\w-]+)", json.dumps(objects))
    return {subject["name"] for subject in subjects} | set(users)


@pytest.mark.parametrize("created", [True, False])
def test_rights_and_policies_follow_the_service_account(chart: Chart, created: bool) -> None:
    account = {"create": created, "name": "gpu-account", "annotations": {"example.com/role": "r"}}
    objects = chart.render(serviceAccount=account)
    assert accounts(objects) == {"gpu-account"}
    assert agent_pod(objects)["spec"]["serviceAccountName"] == "gpu-account"
    made = [one["metadata"] for one in objects if one["kind"] == "ServiceAccount"]
    assert [found["annotations"] for found in made] == ([account["annotations"]] if created else [])
    message = "the token of service account gpu-account names no node"
    assert message in json.dumps(find(objects, "ValidatingAdmissionPolicy", "gpuagent-nodes"))


def test_pull_secrets_of_both_names_reach_every_pod_once(chart: Chart) -> None:
    objects = chart.render(**EVERYTHING, scheduler={"enabled": True}, with_test=True)
    pods = [one["spec"]["template"]["spec"] for one in objects if "template" in one.get("spec", {})]
    pods += [one["spec"] for one in objects if one["kind"] == "Pod"]
    assert len(pods) == 5
    for pod in pods:
        assert pod["imagePullSecrets"] == [{"name": "regcred"}, {"name": "mirror"}, {"name": "other"}]


def images(objects: list[dict[str, Any]]) -> set[str]:
    """Images of all containers, those of hooks included."""
    pods = [one["spec"]["template"]["spec"] for one in objects if "template" in one.get("spec", {})]
    pods += [one["spec"] for one in objects if one["kind"] == "Pod"]
    return {one["image"] for pod in pods for one in (*pod.get("initContainers", ()), *pod["containers"])}


@pytest.mark.parametrize("registry", ["mirror.example.com", "mirror.example.com:5000/cache", "localhost:5000/"])
def test_a_registry_for_all_charts_takes_the_place_of_that_of_every_image(chart: Chart, registry: str) -> None:
    more: dict[str, Any] = {
        "image": {"repository": "registry.example.com/ml/gpuagent", "tag": "1"},
        "cgpu": {"enabled": True, "image": "cgpu-installer@sha256:" + "0" * 64, "package": "/cgpu"},
        "scheduler": {"enabled": True, "kubeScheduler": {"tag": "v1.36.0"}},
        "global": {"imageRegistry": registry, "storageClass": "fast"},
    }
    host = registry.removesuffix("/")
    assert images(chart.render(**EVERYTHING | more, with_test=True)) == {
        f"{host}/ml/gpuagent:1",
        f"{host}/cgpu-installer@sha256:" + "0" * 64,
        f"{host}/kube-scheduler:v1.36.0",
    }


@pytest.mark.parametrize("empty", [{}, {"imageRegistry": ""}, {"imageRegistry": None, "imagePullSecrets": None}])
def test_without_a_registry_for_all_charts_images_are_as_they_are_written(chart: Chart, empty: dict[str, Any]) -> None:
    values: dict[str, Any] = {"image": {"repository": "r.example.com/gpuagent", "tag": "1"}, "global": empty}
    objects = chart.render(**values)
    assert images(objects) == {"r.example.com/gpuagent:1"}


def test_pull_secrets_for_all_charts_come_beside_the_charts_own(chart: Chart) -> None:
    shared: dict[str, Any] = {"global": {"imagePullSecrets": ["shared", {"name": "mirror"}, "mine"]}}
    pod = agent_pod(chart.render(imagePullSecrets=[{"name": "mine"}], **shared))["spec"]
    assert pod["imagePullSecrets"] == [{"name": "mine"}, {"name": "shared"}, {"name": "mirror"}]


def test_affinity_holds_beside_the_labels_of_nodes(chart: Chart) -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    preferred = [{"weight": 1, "preference": zones[0]}]
    chosen: dict[str, Any] = {"nodeAffinity": required | {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    objects = chart.render(affinity=chosen)
    affinity = agent_pod(objects)["spec"]["affinity"]["nodeAffinity"]
    assert affinity["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    found = [(term["matchExpressions"][0]["key"], term["matchExpressions"][1]["values"]) for term in terms]
    labels = ("ack.node.gpu.schedule", "aliyun.accelerator/nvidia_count")
    assert found == [(label, [zone]) for label in labels for zone in ("a", "b")]
    check("1.37", objects)


def test_the_agent_stays_root_and_takes_further_fields_of_the_security_context(chart: Chart) -> None:
    context = agent_pod(chart.render(**EVERYTHING))["spec"]["securityContext"]
    assert context == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": False,
        "supplementalGroups": [44],
        "seLinuxOptions": {"type": "spc_t"},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_an_operator_may_replace_agents_by_hand(chart: Chart) -> None:
    agent = find(chart.render(updateStrategy={"type": "OnDelete"}), "DaemonSet", "gpuagent")
    assert agent["spec"]["updateStrategy"] == {"type": "OnDelete"}
    usual = find(chart.render(updateStrategy={"rollingUpdate": {"maxUnavailable": 3}}), "DaemonSet", "gpuagent")
    assert usual["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 3}


def test_every_object_has_the_common_labels_and_no_pod_template_changes_by_them(chart: Chart) -> None:
    objects = chart.render(commonLabels={"team": "ml"}, scheduler={"enabled": True}, dra={"enabled": True})
    assert {one["metadata"]["labels"]["team"] for one in objects} == {"ml"}
    assert "team" not in agent_pod(objects)["metadata"]["labels"]


def test_a_service_monitor_has_the_series_of_the_pod_monitor(chart: Chart) -> None:
    monitor = {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"}
    by_pod = chart.render(metrics={"podMonitor": monitor}, scheduler={"enabled": True})
    by_service = chart.render(metrics={"serviceMonitor": monitor}, scheduler={"enabled": True})
    for name in ("gpuagent", "gpu-scheduler"):
        expected = find(by_pod, "PodMonitor", name)
        found = find(by_service, "ServiceMonitor", name)
        assert found["spec"]["endpoints"] == expected["spec"]["podMetricsEndpoints"]
        assert found["metadata"]["labels"] == expected["metadata"]["labels"]
        service = find(by_service, "Service", f"{name}-metrics")
        assert service["metadata"]["labels"].items() >= found["spec"]["selector"]["matchLabels"].items()
        assert service["spec"]["selector"] == expected["spec"]["selector"]["matchLabels"]
    check("1.37", by_service)


def test_the_test_of_a_release_is_one_pod_with_the_agents_account_and_no_rights_on_its_node(chart: Chart) -> None:
    usual = chart.render()
    (pod,) = [one for one in chart.render(with_test=True) if one not in usual]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["metadata"]["name"] == "gpuagent-test"
    assert pod["spec"]["serviceAccountName"] == "gpuagent"
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert "volumes" not in pod["spec"]
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["command"][2] == (CHART / "test/nodes.py").read_text()
    every = {"name": "SERVES_EVERY_LABELED_NODE", "value": "true"}
    assert every in container["env"]
    pool = chart.render(with_test=True, nodeSelector={"pool": "gpu"})
    (of_pool,) = (one for one in pool if one["kind"] == "Pod")
    assert every | {"value": "false"} in of_pool["spec"]["containers"][0]["env"]
    for version in ("1.18", "1.37"):
        check(version, [one for one in chart.render(version=version, with_test=True) if one["kind"] == "Pod"])


def test_the_test_of_a_release_does_not_wait_on_a_dead_node(chart: Chart) -> None:
    """It would wait until Helm's timeout, and say nothing."""
    named = [
        {"key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
    ]
    objects = chart.render(
        with_test=True, tolerations=[{"operator": "Exists"}, *named], startupTaint="example.com/starting"
    )
    (pod,) = (one for one in objects if one["kind"] == "Pod")
    usual = ("nvidia.com/gpu", "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
    starting = {"key": "example.com/starting", "operator": "Exists"}
    assert pod["spec"]["tolerations"] == [*({"key": key, "operator": "Exists"} for key in usual), named[0], starting]
    assert agent_pod(objects)["spec"]["tolerations"] == [{"operator": "Exists"}, *named]
    check("1.37", [pod])


# -- nodes and modes ------------------------------------------------------------------------------------------------


def test_what_an_operator_adds_reaches_the_agent(chart: Chart) -> None:
    objects = chart.render(**EVERYTHING)
    agent = find(objects, "DaemonSet", "gpuagent")
    assert agent["metadata"]["annotations"] == {"note": "daemonset"}
    spec = agent["spec"]["template"]["spec"]
    assert spec["containers"][0]["env"][-1] == EVERYTHING["extraEnv"][0]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert all(EVERYTHING["nodeAffinity"][0] in term["matchExpressions"] for term in terms)
    assert len(terms) == 2
    made = find(objects, "RuntimeClass", "nvidia")
    assert (made["handler"], spec["runtimeClassName"]) == ("nvidia", "nvidia")
    assert "RuntimeClass" not in {one["kind"] for one in chart.render(driver={"runtimeClassName": "nvidia"})}


def test_the_notes_say_what_to_do_next(chart: Chart) -> None:
    notes = chart.notes()
    assert "kubectl label node NODE ack.node.gpu.schedule=share" in notes
    assert "rollout status daemonset/gpuagent" in notes


def test_a_node_without_the_label_keeps_its_agent_by_what_the_agent_wrote(chart: Chart) -> None:
    affinity = find(chart.render(), "DaemonSet", "gpuagent")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchExpressions"] for term in terms] == [
        [{"key": "ack.node.gpu.schedule", "operator": "Exists"}],
        [{"key": "aliyun.accelerator/nvidia_count", "operator": "Exists"}],
    ]


def test_no_second_agent_comes_before_the_first_has_gone(chart: Chart) -> None:
    def strategies(version: str) -> list[Any]:
        objects = chart.render(version=version, cgpu=EVERYTHING["cgpu"])
        return [find(objects, "DaemonSet", name)["spec"]["updateStrategy"] for name in ("gpuagent", "cgpu-installer")]

    for version in ("1.22", "1.36"):
        explicit = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}
        assert strategies(version) == [explicit, explicit]
    for version in ("1.18", "1.21"):  # these have no surge by default
        only = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
        assert strategies(version) == [only, only]
    number = chart.render(version="1.18", updateStrategy={"maxUnavailable": 2})
    assert find(number, "DaemonSet", "gpuagent")["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 2}


def test_the_installer_is_on_nodes_of_its_modes_with_the_policy(chart: Chart) -> None:
    objects = chart.render(policy=2, cgpu=EVERYTHING["cgpu"])
    spec = find(objects, "DaemonSet", "cgpu-installer")["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["cgpu", "core_mem"]
    found = containers(objects)
    assert "--policy=2" in found["install"]["args"]
    assert "--set=2" in found["policy"]["args"]
    assert "--policy=5" in containers(chart.render(cgpu=EVERYTHING["cgpu"]))["install"]["args"]
    assert not spec.get("hostPID")


def test_only_the_agent_has_the_nodes_network(chart: Chart) -> None:
    objects = chart.render(hostNetwork=True, mps={"enabled": True}, cgpu=EVERYTHING["cgpu"])
    pods = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects if one["kind"] == "DaemonSet"}
    assert pods.keys() == {"gpuagent", "mps-control", "cgpu-installer"}
    assert {name for name, spec in pods.items() if {"hostNetwork", "dnsPolicy"} & spec.keys()} == {"gpuagent"}


def test_the_mps_daemon_does_not_follow_the_mode_nor_upgrades(chart: Chart) -> None:
    objects = chart.render(mps={"enabled": True})
    daemon, agent = find(objects, "DaemonSet", "mps-control"), find(objects, "DaemonSet", "gpuagent")
    assert daemon["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert daemon["spec"]["template"]["spec"]["affinity"] == agent["spec"]["template"]["spec"]["affinity"]
    mounted = {
        one["name"]: {m["mountPath"] for m in one["volumeMounts"]} & {"/var/run/nvidia-gpu/nvidia-mps"}
        for one in containers(objects).values()
    }
    assert mounted["gpuagent"] == mounted["mps-control"] != set()
    kinds = [one["metadata"]["name"] for one in chart.render(mps={"enabled": True, "daemon": False})]
    assert "mps-control" not in kinds


def test_a_quota_admits_the_priority_class_outside_of_kube_system(chart: Chart) -> None:
    quota = find(chart.render(namespace="gpu"), "ResourceQuota", "gpuagent")
    assert quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"] == ["system-node-critical"]
    assert "ResourceQuota" not in [one["kind"] for one in chart.render()]


# -- monitoring -----------------------------------------------------------------------------------------------------


def test_the_pod_monitor_names_targets_as_rules_and_dashboard_ask_for_them(chart: Chart) -> None:
    objects = chart.render(metrics={"podMonitor": {"enabled": True}})
    monitor = find(objects, "PodMonitor", "gpuagent")["spec"]
    pods = find(objects, "DaemonSet", "gpuagent")["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in containers(objects)["gpuagent"]["ports"]}
    assert endpoint["honorLabels"] is True
    set_ = {one["targetLabel"]: one.get("replacement", *one.get("sourceLabels", ())) for one in endpoint["relabelings"]}
    node = "__meta_kubernetes_pod_node_name"
    assert set_ == {"job": "gpuagent", "instance": node, "node": node}


def test_rules_and_dashboard_reach_the_cluster_as_they_are(chart: Chart) -> None:
    chosen = {"prometheusRule": {"enabled": True, "labels": {"release": "p"}}, "dashboard": {"enabled": True}}
    objects = chart.render(namespace="gpu", metrics=chosen)
    rule, dashboard = find(objects, "PrometheusRule", "gpuagent"), find(objects, "ConfigMap", "gpuagent-dashboard")
    # Without an address of the repository, the path of a runbook is no URL.
    rules = (CHART / "monitoring" / "alerts.yaml").read_text().replace("runbook_url: ", "runbook: ")
    # Commands look where the release is.
    rules = rules.replace("kubectl -n kube-system ", "kubectl -n gpu ")
    assert rule["spec"] == yaml.safe_load(rules)
    assert rule["metadata"]["labels"]["release"] == "p"
    shown = json.loads(dashboard["data"]["gpuagent.json"])
    assert shown == json.loads((CHART / "monitoring" / "dashboard.json").read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {one["metadata"]["namespace"] for one in (rule, dashboard)} == {"gpu"}
    kinds = {one["kind"] for one in chart.render()}
    assert not kinds & {"PodMonitor", "PrometheusRule"}
    assert "gpuagent-dashboard" not in {one["metadata"]["name"] for one in chart.render()}


def runbooks(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Where each alert leads."""
    rules = [
        one for name in ("gpuagent", "gpu-scheduler") for one in find(objects, "PrometheusRule", name)["spec"]["groups"]
    ]
    return {rule["alert"]: rule["annotations"]["runbook_url"] for group in rules for rule in group["rules"]}


def test_alerts_lead_to_the_page_that_the_operator_names(chart: Chart) -> None:
    page = "https://git.example.com:8443/gpuagent/docs/problems.md"
    metrics = {"prometheusRule": {"enabled": True, "runbookUrl": page}}
    led = runbooks(chart.render(scheduler={"enabled": True}, metrics=metrics))
    assert {address.partition("#")[0] for address in led.values()} == {page}
    assert led["GPUAgentDown"] == f"{page}#gpuagentdown"
    for wrong in ("docs/problems.md", "https://a b", "https://a#b"):
        assert "runbookUrl" in chart.refusal(metrics={"prometheusRule": {"runbookUrl": wrong}})


def test_alerts_of_a_chart_without_an_address_name_the_page_and_show_no_link(chart: Chart) -> None:
    objects = chart.render(metrics={"prometheusRule": {"enabled": True}})
    groups = find(objects, "PrometheusRule", "gpuagent")["spec"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert "runbook_url" not in rule["annotations"]
        assert rule["annotations"]["runbook"].startswith("docs/problems.md#")


def test_dashboards_lead_to_the_page_of_the_alerts(chart: Chart) -> None:
    page = "https://git.example.com/docs/problems.md"
    metrics = {"prometheusRule": {"runbookUrl": page}, "dashboard": {"enabled": True}}
    objects = chart.render(scheduler={"enabled": True}, metrics=metrics)
    shown = find(objects, "ConfigMap", "gpuagent-dashboard")["data"]
    assert len(shown) == 2
    for dashboard in map(json.loads, shown.values()):
        assert [link["url"] for link in dashboard["links"]] == [page]


def test_alerts_of_a_published_chart_lead_to_its_repository(chart: Chart, tmp_path: Path) -> None:
    released = shutil.copytree(CHART, tmp_path / "published")
    metadata = released / "Chart.yaml"
    metadata.write_text(published(metadata.read_text(), "https://git.example.com/gpuagent"))
    metrics = {"prometheusRule": {"enabled": True}}
    led = runbooks(chart.render(path=released, scheduler={"enabled": True}, metrics=metrics))
    page = f"https://git.example.com/gpuagent/blob/v{VERSION}/docs/problems.md"
    assert {address.partition("#")[0] for address in led.values()} == {page}


def test_the_notes_say_what_alerts_lead_to_without_an_address(chart: Chart) -> None:
    named = {"prometheusRule": {"enabled": True, "runbookUrl": "https://git.example.com/docs/problems.md"}}
    assert "metrics.prometheusRule.runbookUrl" in chart.notes(metrics={"prometheusRule": {"enabled": True}})
    assert "runbookUrl" not in chart.notes(metrics=named)
    assert "runbookUrl" not in chart.notes()


def test_the_charts_version_is_the_agents() -> None:
    from gpuagent import __version__

    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert described["version"] == described["appVersion"] == __version__
