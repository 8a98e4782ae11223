"""The examples of claims: valid, of the chart's classes, and one for each mode."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.domain.dra.device_classes import CLASSES

EXAMPLES = Path(__file__).parents[4] / "examples" / "claims"


def examples() -> dict[str, list[dict[str, Any]]]:
    return {path.stem: list(yaml.safe_load_all(path.read_text())) for path in sorted(EXAMPLES.glob("*.yaml"))}


@pytest.mark.parametrize("name", examples())
def test_examples_name_classes_of_the_chart_and_their_own_template(name):
    import kubernetes_validate

    template, pod = examples()[name]
    for one in (template, pod):
        kubernetes_validate.validate(one, "1.36", strict=True)
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] in CLASSES
    (claim,) = pod["spec"]["resourceClaims"]
    assert claim == {"name": request["name"], "resourceClaimTemplateName": template["metadata"]["name"]}
    assert pod["spec"]["containers"][0]["resources"] == {"claims": [{"name": claim["name"]}]}
    assert re.fullmatch("example-claim-[a-z-]+", pod["metadata"]["name"])
    assert pod["spec"].keys() == {"restartPolicy", "terminationGracePeriodSeconds", "resourceClaims", "containers"}


def test_there_is_an_example_for_every_other_mode():
    """Those of the device plugin have the same names, and only a claim isolates shares of two GPUs."""
    modes = {path.stem for path in EXAMPLES.parent.glob("*.yaml") if "kube-scheduler" not in path.stem}
    assert set(examples()) == modes | {"two-isolated-gpus"}
