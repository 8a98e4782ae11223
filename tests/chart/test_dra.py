"""Mode dra in the chart: one value brings the classes, rights, directories and policies."""

import re
from typing import Any

import pytest

from gpuagent.domain.dra.device_classes import CLASSES
from gpuagent.domain.dra.unprepared import PREPARE_AGAIN_ANNOTATION
from standin.scheduler.device_classes import CLASSES as STANDIN_CLASSES
from tests.chart.conftest import Chart, containers, find
from tests.chart.test_render import EVERYTHING, agent_pod, check, pod_rights, settings_of

ON: dict[str, Any] = {"dra": {"enabled": True}}
GROUP = "resource.k8s.io"


def classes(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "DeviceClass"}


def policies(objects: list[dict[str, Any]]) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == "ValidatingAdmissionPolicy"}


def test_it_is_one_value_and_off_by_default(chart: Chart) -> None:
    off, on = chart.render(), chart.render(**ON)
    assert GROUP not in str(off)
    assert "cdi" not in str(off)
    assert set(classes(on)) == set(CLASSES)
    selected = {name: spec["selectors"][0]["cel"]["expression"] for name, spec in classes(on).items()}
    assert selected == STANDIN_CLASSES, "the demo and the contract use these"
    added = {f"gpuagent-{what}" for what in ("resourceslices", "resourceclaims", "resourceclaimtemplates")}
    assert policies(on) - policies(off) == added
    bound = {one["spec"]["policyName"] for one in on if one["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert policies(on) <= bound


@pytest.mark.parametrize("version", ["1.34", "v1.35.4", "1.36", "v1.36.3", "v1.36.1-aliyun.1", "1.37"])
def test_a_version_with_the_api_has_a_schema_for_what_it_gets(chart: Chart, version: str) -> None:
    chosen: dict[str, Any] = EVERYTHING | {"dra": {"enabled": True, "extendedResource": "aliyun.com/gpu"}}
    check("1.37" if version == "1.37" else "1.36", chart.render(version=version, namespace="gpu", **chosen))


@pytest.mark.parametrize("version", ["1.18", "1.30", "v1.33.9"])
def test_an_older_version_is_refused_with_a_sentence(chart: Chart, version: str) -> None:
    said = chart.refusal(version=version, **ON)
    assert "dra.enabled needs Kubernetes 1.34, the first with resource.k8s.io/v1" in said
    assert f"and Kubernetes is v{version.removeprefix('v')}: set it to false" in said


@pytest.mark.parametrize("name", ["aliyun.com/gpu", "nvidia.com/gpu"])
def test_whole_gpus_have_a_resource_name_on_request(chart: Chart, name: str) -> None:
    assert not [spec for spec in classes(chart.render(**ON)).values() if "extendedResourceName" in spec]
    named = classes(chart.render(dra={"enabled": True, "extendedResource": name}))
    found = {one: spec["extendedResourceName"] for one, spec in named.items() if "extendedResourceName" in spec}
    assert found == {"gpu.gpuagent.io": name}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"dra": {"enabled": "auto"}}, "/dra/enabled"),
        ({"dra": {"on": True}}, "'on' not allowed"),
        ({"dra": {"enabled": True, "extendedResource": "aliyun.com/gpu-mem"}}, "/dra/extendedResource"),
        ({"dra": {"enabled": True, "extendedResource": "gpu"}}, "/dra/extendedResource"),
        ({"dra": {"enabled": True, "extendedResource": "kubernetes.io/gpu"}}, "/dra/extendedResource"),
        ({"dra": {"extendedResource": "aliyun.com/gpu"}}, "dra.extendedResource needs dra.enabled"),
        ({"paths": {"cdi": "cdi"}}, "/paths/cdi"),
        ({"dra": {"enabled": True}, "paths": {"cdi": "/var/lib/gpuagent"}}, "two folders of the agent's pod"),
        ({"dra": {"enabled": True}, "settings": {"fence-file": "/var/run/cdi/f.json"}}, "two folders of the agent's"),
        ({"settings": {"cdi-dir": "/cdi"}}, "'cdi-dir' not allowed"),
        (
            {
                "dra": {"enabled": True, "extendedResource": "aliyun.com/gpu"},
                "scheduler": {"enabled": True, "setSchedulerName": True},
            },
            "scheduler.setSchedulerName gives pods that ask for aliyun.com/gpu to the scheduler gpu-scheduler",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(chart: Chart, values: dict[str, Any], expected: str) -> None:
    assert expected in chart.refusal(**values)


def test_the_agent_has_its_directories_and_names_them(chart: Chart) -> None:
    objects = chart.render(**ON, paths={"kubelet": "/data/kubelet", "cdi": "/etc/cdi"})
    wanted = {
        "/data/kubelet/plugins_registry",
        "/data/kubelet/plugins/gpu.gpuagent.io",
        "/etc/cdi",
    }
    spec = agent_pod(objects)["spec"]
    (container,) = spec["containers"]
    written = {one["mountPath"]: one["name"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert wanted <= written.keys()
    there = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
    assert {path: there[name] for path, name in written.items()} == {path: path for path in written}
    found = settings_of(objects)
    assert (str(found.cdi_dir), str(found.kubelet_dir)) == ("/etc/cdi", "/data/kubelet")
    assert not containers(objects)["gpuagent"]["securityContext"]["privileged"]


def rights(objects: list[dict[str, Any]]) -> dict[str, list[str]]:
    rules = find(objects, "ClusterRole", "gpuagent")["rules"]
    return {name: rule["verbs"] for rule in rules for name in rule["resources"]}


def test_the_agent_may_read_claims_and_write_slices(chart: Chart) -> None:
    without = rights(chart.render())
    assert rights(chart.render(**ON)) == without | {
        "namespaces": ["get"],
        "resourceclaims": ["get"],
        "resourceslices": ["list", "watch", "create", "patch", "delete"],
    }


def own_annotations(objects: list[dict[str, Any]]) -> set[str]:
    variables = find(objects, "ValidatingAdmissionPolicy", "gpuagent-pods")["spec"]["variables"]
    (own,) = (one["expression"] for one in variables if one["name"] == "ownAnnotations")
    return set(re.findall(r"'([^']+)'", own))


def test_the_policy_of_pods_lets_the_agent_have_a_claim_prepared_again(chart: Chart) -> None:
    assert own_annotations(chart.render(**ON)) - own_annotations(chart.render()) == {PREPARE_AGAIN_ANNOTATION}
    objects = chart.render(**ON, rbac={"podAnnotations": False})
    assert pod_rights(objects) == {"patch"}
    assert own_annotations(objects) == {PREPARE_AGAIN_ANNOTATION}
    assert not settings_of(objects).annotate_pods


def test_no_right_to_patch_every_pod_comes_without_policies(chart: Chart) -> None:
    objects = chart.render(**ON, admissionPolicy={"enabled": False})
    assert pod_rights(objects) == set()
    assert policies(objects) == set()
    said = chart.notes(**ON, admissionPolicy={"enabled": False})
    assert "WARNING: dra.enabled is on. The token of one node's agent can change the ResourceSlices" in said
    assert "waits 60 to 90 s" in said


def test_both_or_neither_is_left_out_on_request(chart: Chart) -> None:
    found = policies(chart.render(dra={"enabled": True, "bothOrNeither": False}))
    assert "gpuagent-resourceslices" in found
    assert not found & {"gpuagent-resourceclaims", "gpuagent-resourceclaimtemplates"}


def test_the_notes_say_how_a_node_and_a_pod_come_to_it(chart: Chart) -> None:
    assert "dra.md" not in chart.notes()
    assert "ack.node.gpu.schedule=dra" in chart.notes(**ON)
    assert "Before Kubernetes 1.36, claims get whole GPUs" in chart.notes(version="1.35", **ON)
    assert "Before Kubernetes 1.36" not in chart.notes(version="1.36", **ON)
    assert "docs/dra.md" in chart.notes(**ON)
