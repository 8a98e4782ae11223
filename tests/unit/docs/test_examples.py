"""The examples are what the documents advise: the scheduler's name, the toleration of its taint, no rights."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from tests.unit.docs.test_docs import ROOT, section
from tests.unit.docs.test_docs_commands import blocks
from tests.unit.docs.test_workload_pages import manifests, objects

EXAMPLES = ROOT / "examples"
SHARED = {GPU_MEM, GPU_CORE, GPU_WHOLE}
"""Resources that gpuscheduler places."""
PAGE_OF_JOB = {
    "PyTorchJob": "pytorchjob.md",
    "MPIJob": "pytorchjob.md",
    "JobSet": "jobset.md",
    "LeaderWorkerSet": "leaderworkerset.md",
    "RayCluster": "ray.md",
}


def pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Every specification of a pod inside an object: what has containers."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_specs(inner)


def specs_of(path: Path) -> list[dict[str, Any]]:
    return list(pod_specs(list(yaml.safe_load_all(path.read_text(encoding="utf-8")))))


OF_PODS = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if specs_of(path)]
"""Every file with a pod or the template of one, of whatever kind, so that a new file is one of them."""


def asks_for_shares(spec: dict[str, Any]) -> bool:
    limits = [container.get("resources", {}).get("limits", {}) for container in spec["containers"]]
    return any(SHARED & names.keys() for names in limits)


def advised() -> dict[str, Any]:
    """What docs/gpuscheduler.md tells every pod of a tainted node to have."""
    text = (ROOT / "docs/gpuscheduler.md").read_text(encoding="utf-8")
    advice = section(text, "Two schedulers")
    (block,) = re.findall(r"```yaml\n(.*?)```", advice, re.DOTALL)
    spec = yaml.safe_load(block)["spec"]
    key, value, effect = re.search(r"kubectl taint node NODE (\S+)=(\S+):(\S+)", advice).groups()
    assert spec["tolerations"] == [{"key": key, "operator": "Equal", "value": value, "effect": effect}]
    return dict(spec)


def name_of(path: Path) -> str:
    return str(path.relative_to(EXAMPLES))


def test_every_example_is_yaml_that_these_tests_read():
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix != ".yaml"] == []


@pytest.mark.parametrize("path", OF_PODS, ids=name_of)
def test_pods_may_run_on_the_tainted_nodes_of_the_scheduler(path):
    """In a file with shares each pod names the scheduler, too: also one without a GPU, such as a job's launcher."""
    specs = specs_of(path)
    expected = advised()
    if not any(asks_for_shares(spec) for spec in specs):
        del expected["schedulerName"]
    for spec in specs:
        assert {key: spec[key] for key in ("schedulerName", "tolerations") if key in spec} == expected


@pytest.mark.parametrize("path", sorted(EXAMPLES.joinpath("claims").rglob("*.yaml")), ids=name_of)
def test_pods_with_claims_need_one_comment_removed_for_the_scheduler(path):
    """Any scheduler places claims, but on tainted nodes one scheduler places all pods."""
    text = path.read_text(encoding="utf-8").replace("# schedulerName:", "schedulerName:")
    expected = advised()
    for spec in pod_specs(list(yaml.safe_load_all(text))):
        assert {key: spec.get(key) for key in expected} == expected


def test_the_name_is_that_of_the_charts_scheduler():
    values = yaml.safe_load((ROOT / "manifests/helm/gpuagent/values.yaml").read_text(encoding="utf-8"))
    assert advised()["schedulerName"] == values["scheduler"]["name"]


@pytest.mark.parametrize("path", OF_PODS, ids=name_of)
def test_examples_are_let_into_namespaces_of_level_baseline(path):
    """By Pod Security Standards: nothing of the host, and no rights beyond the usual ones."""
    known = {"restartPolicy", "terminationGracePeriodSeconds", "containers", "runtimeClassName", "schedulerName"}
    known |= {"nodeSelector", "tolerations", "resourceClaims"}
    of_container = {*"name image imagePullPolicy command args ports readinessProbe resources".split()}
    for spec in specs_of(path):
        assert spec.keys() <= known
        for container in spec["containers"]:
            assert container.keys() <= of_container


@pytest.mark.parametrize("kind", PAGE_OF_JOB)
def test_the_example_of_a_job_is_that_of_its_page(kind):
    example = yaml.safe_load((EXAMPLES / "jobs" / f"{kind.lower()}.yaml").read_text(encoding="utf-8"))
    assert example == manifests(PAGE_OF_JOB[kind])[kind]


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_pods_of_a_page_that_name_the_scheduler_may_run_on_its_tainted_nodes(page):
    """Fragments without containers, which only show one field, are left alone."""
    expected = advised()
    for spec in pod_specs(objects(page)):
        if spec.get("schedulerName") == expected["schedulerName"]:
            assert spec.get("tolerations") == expected["tolerations"]


@pytest.mark.parametrize("page", ["README.md", "docs/run-a-workload.md"])
def test_the_first_example_of_a_page_needs_no_large_image(page):
    applied = re.findall(r"kubectl apply -f (examples/\S+)", "\n".join(blocks(ROOT / page, "sh")))
    (spec,) = pod_specs(yaml.safe_load((ROOT / applied[0]).read_text(encoding="utf-8")))
    assert [container["image"].partition(":")[0] for container in spec["containers"]] == ["busybox"]
    assert "runtimeClassName" not in spec
