"""The template that `gpuagent claim` prints."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.dra import claim_template
from gpuagent.domain.dra.claim_template import MOST_GPUS, Wanted, template_yaml
from gpuagent.domain.dra.device_classes import CLASSES

EXAMPLES = Path(__file__).parents[4] / "examples" / "claims"


def request_of(wanted: Wanted) -> dict[str, Any]:
    found = yaml.safe_load(template_yaml(wanted, wanted.name, ""))
    (request,) = found["spec"]["spec"]["devices"]["requests"]
    return dict(request["exactly"])


@pytest.mark.parametrize(
    ("wanted", "name", "request_found"),
    [
        (Wanted(), "gpu", {"deviceClassName": "gpu.gpuagent.io"}),
        (Wanted(gpus=2), "2-gpus", {"deviceClassName": "gpu.gpuagent.io", "count": 2}),
        (
            Wanted(memory_mib=8192),
            "gpu-8gi",
            {"deviceClassName": "gpu-share.gpuagent.io", "capacity": {"requests": {"memory": "8Gi"}}},
        ),
        (
            Wanted(memory_mib=512, isolated=True),
            "gpu-512mi-isolated",
            {"deviceClassName": "gpu-isolated.gpuagent.io", "capacity": {"requests": {"memory": "512Mi"}}},
        ),
        (
            Wanted(gpus=2, memory_mib=8192, cores=30),
            "2-gpus-8gi-30",
            {
                "deviceClassName": "gpu-core.gpuagent.io",
                "count": 2,
                "capacity": {"requests": {"memory": "8Gi", "cores": "30"}},
            },
        ),
    ],
)
def test_the_amounts_choose_the_class_and_the_name(wanted, name, request_found):
    assert wanted.name == name
    assert request_of(wanted) == request_found


def test_it_says_what_it_is_and_how_a_pod_names_it():
    text = template_yaml(Wanted(memory_mib=8192, cores=30), "chat", "ml")
    assert text.startswith("# 8 GiB and 30 % of a GPU, both isolated.\n")
    assert '# In the pod: resourceClaims: [{name: gpu, resourceClaimTemplateName: "chat"}]\n' in text
    assert yaml.safe_load(text)["metadata"] == {"name": "chat", "namespace": "ml"}
    assert "namespace" not in template_yaml(Wanted(), "chat", "")


@pytest.mark.parametrize("name", ["true", "1e3", "0x10", "123"])
def test_names_that_yaml_would_take_for_something_else_stay_texts(name):
    assert yaml.safe_load(template_yaml(Wanted(), name, name))["metadata"] == {"name": name, "namespace": name}


@given(
    st.builds(
        Wanted,
        gpus=st.integers(1, MOST_GPUS),
        memory_mib=st.integers(1, 10**9),
        cores=st.none() | st.integers(1, 100),
        isolated=st.booleans(),
    )
    | st.builds(Wanted, gpus=st.integers(1, MOST_GPUS))
)
def test_every_template_is_valid(wanted):
    import kubernetes_validate  # takes long to load

    kubernetes_validate.validate(
        yaml.safe_load(template_yaml(wanted, claim_template.template_name(wanted.name), "")), "1.36", strict=True
    )
    assert wanted.device_class in CLASSES


@pytest.mark.parametrize(
    ("text", "mib"), [("8", 8192), ("8Gi", 8192), ("8GiB", 8192), ("512Mi", 512), ("512MiB", 512), ("1", 1024)]
)
def test_memory_is_in_gib_unless_a_unit_says_otherwise(text, mib):
    assert claim_template.memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "8G", "8gb", "8 GiB", "1Ti", "\u0661", "9" * 5000])
def test_other_amounts_of_memory_are_refused_with_an_example(text):
    with pytest.raises(
        ValueError, match="is not an amount of memory: give whole GiB, such as 8, or MiB, such as 512Mi"
    ):
        claim_template.memory_mib(text)


@pytest.mark.parametrize("text", ["", "0", "101", "30%", "2.5", "-1", "\u0661", "9" * 5000])
def test_other_percentages_are_refused(text):
    with pytest.raises(ValueError, match="is not a percentage of a GPU's compute: give a whole number from 1 to 100"):
        claim_template.cores(text)
    assert claim_template.cores("100") == 100


@pytest.mark.parametrize("text", ["", "0", "33", "two"])
def test_other_numbers_of_gpus_are_refused(text):
    with pytest.raises(ValueError, match="is not the number of GPUs of one claim: give a whole number from 1 to 32"):
        claim_template.gpus(text)
    assert claim_template.gpus("32") == MOST_GPUS


@pytest.mark.parametrize("text", ["", "A", "a_b", "-a", "a-", "a..b", "a/b", 'a"', "a\n", "a" * 254])
def test_names_that_the_api_server_refuses_are_refused(text):
    with pytest.raises(ValueError, match="is not a name"):
        claim_template.template_name(text)
    with pytest.raises(ValueError, match="is not a namespace"):
        claim_template.namespace(text)


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
    """Those of the device plugin have the same names."""
    modes = {path.stem for path in EXAMPLES.parent.glob("*.yaml") if "kube-scheduler" not in path.stem}
    assert set(examples()) == modes
