"""The examples of claims: valid, of the chart's classes, one for each mode, and the same programs as without claims."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.domain.dra.device_classes import CLASSES

EXAMPLES = Path(__file__).parents[4] / "examples" / "claims"
OF_MODES = {path.stem for path in EXAMPLES.parent.glob("*.yaml") if "kube-scheduler" not in path.stem}
"""Those of the device plugin have the same names."""
MORE = {"two-isolated-gpus", "linked-gpus", "gpu-and-nic", "monitor"}
"""What only a claim can say."""
OF_OTHERS = {"dranet"}
"""Classes of other drivers."""
PROGRAMS = sorted((EXAMPLES / "workloads").glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


EVERY = [*sorted(EXAMPLES.glob("*.yaml")), *PROGRAMS]


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_examples_are_valid_and_name_classes_of_the_chart_and_their_own_template(path):
    import kubernetes_validate

    template, workload = documents(path)
    for manifest in (template, workload):
        kubernetes_validate.validate(manifest, "1.36", strict=True)
    for request in template["spec"]["spec"]["devices"]["requests"]:
        alternatives = request.get("firstAvailable") or [request["exactly"]]
        assert {one["deviceClassName"] for one in alternatives} <= {*CLASSES, *OF_OTHERS}
    spec = workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]
    (claim,) = spec["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert spec["containers"][0]["resources"] == {"claims": [{"name": claim["name"]}]}
    assert re.fullmatch("example-claim-[a-z-]+", workload["metadata"]["name"])


@pytest.mark.parametrize("path", [EXAMPLES / f"{name}.yaml" for name in sorted(OF_MODES)], ids=lambda path: path.stem)
def test_the_example_of_a_mode_has_one_request_and_what_a_pod_needs(path):
    template, pod = documents(path)
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    (claim,) = pod["spec"]["resourceClaims"]
    assert claim["name"] == request["name"]
    needed = {"restartPolicy", "terminationGracePeriodSeconds", "tolerations", "resourceClaims", "containers"}
    assert pod["spec"].keys() == needed


def test_there_is_an_example_for_every_other_mode():
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == OF_MODES | MORE


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_the_same_as_without_a_claim(path):
    """But for its name, the claim in place of the limits, and the scheduler: the stock one gives devices to claims."""
    _, with_claim = documents(path)
    (without,) = documents(EXAMPLES.parent / "workloads" / path.name)
    assert plain(with_claim) == plain(without)


def test_there_is_a_claim_for_every_program():
    assert [path.name for path in PROGRAMS] == sorted(
        path.name for path in (EXAMPLES.parent / "workloads").glob("*.yaml")
    )


def plain(workload: dict[str, Any]) -> str:
    spec = workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]
    for name in ("resourceClaims", "schedulerName", "tolerations"):
        spec.pop(name, None)
    spec["containers"][0].pop("resources")
    return yaml.safe_dump(workload).replace("example-claim-", "example-")
