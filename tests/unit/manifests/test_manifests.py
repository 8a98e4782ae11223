"""The plain YAML and the chart's schema, as far as that can be seen without Helm; `make chart` looks at the rest."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION, MOST_FORMER, FormerGpu, former_gpus_text
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION, WRITTEN_KEYS
from gpuagent.domain.scheduling.held_gpus import HELD_GPUS_ANNOTATION, MOST_TEXT
from gpuagent.domain.scheduling.node_gpus import MOST_GPUS, NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.kube.write.event_sender import MESSAGE_CHARS
from gpuagent.settings import settings as config
from gpuagent.settings import values as settingvalues
from gpuagent.settings.settings import Settings
from gpuagent.simulation import boxes
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION
from manifests.render import (
    CHART,
    CHARTS_OWN,
    FOLDER,
    PLAIN,
    REASONS,
    SCHEMA,
    TEXTS,
    digest,
    reasons,
    scheduler_settings_schema,
    settings_schema,
)

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SINCE = {
    "gpuagent.yaml": range(30, 38),
    "gpuagent-1.19-to-1.29.yaml": range(19, 30),
    "gpuagent-1.18.yaml": range(18, 19),
}
"""Minor versions that each file is for."""
FLOOR = r"Kubernetes (1\.\d+) (?:to 1\.\d+|or later)"
FIRST_SCHEMA = 25
"""The schemas of versions before are for `make chart`."""


@cache
def objects(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")) if one]


def find(name: str, kind: str) -> dict[str, Any]:
    (found,) = (one for one in objects(name) if (one["kind"], one["metadata"]["name"]) == (kind, "gpuagent"))
    return found


@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_yaml_is_made_from_the_chart_as_it_is(name):
    assert f"({digest()})" in (FOLDER / name).read_text(encoding="utf-8"), "run `make manifests`"


def test_the_schema_knows_every_setting():
    written = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    assert written["settings"] == settings_schema(), "run `make manifests`"
    scheduler = written["scheduler"]["properties"]["settings"]
    assert scheduler == scheduler_settings_schema(), "run `make manifests`"
    assert written["startupTaint"] == {"type": "string"} | TEXTS[settingvalues.taint_key], "run `make manifests`"


def policy(what: str) -> dict[str, Any]:
    kind, name = "ValidatingAdmissionPolicy", f"gpuagent-{what}"
    (found,) = (one for one in objects("gpuagent.yaml") if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found["spec"]


def test_the_policy_of_events_takes_every_reason_of_the_agent_and_no_other():
    """Type checking holds the code to `EventReason`; here nothing stands in it that no code uses."""
    assert REASONS.read_text(encoding="utf-8") == reasons(), "run `make manifests`"
    (listed,) = (one["expression"] for one in policy("events")["variables"] if one["name"] == "reasons")
    assert re.findall(r"'(\w+)'", listed) == list(get_args(EventReason)) == sorted(get_args(EventReason))
    source = (path for path in (FOLDER.parent / "gpuagent").rglob("*.py") if path.stem != "eventreason")
    code = "\n".join(path.read_text(encoding="utf-8") for path in source)
    assert [reason for reason in get_args(EventReason) if f'"{reason}"' not in code] == []


def test_the_policy_of_events_takes_the_longest_message_of_the_agent():
    sizes = [
        text for one in policy("events")["validations"] for text in re.findall(r"message\) <= (\d+)", one["expression"])
    ]
    assert sizes == [str(MESSAGE_CHARS)]


def values_of(known: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema may take, by what it says."""
    if "enum" in known:
        return st.sampled_from(known["enum"])
    if "anyOf" in known:
        return st.one_of(*map(values_of, known["anyOf"]))
    if "pattern" in known:
        odd = [
            "aliyun.com/gpu",
            "node.kubernetes.io/not-ready",
            "requests.a/b",
            "a.kubernetes.io/b",
            f"{'a.' * 130}a/b",
            "63;94",
            "0GiB",
            "1.5GiB",
            "63,",
            "GPU",
            "\u0661GiB",
        ]
        return st.from_regex(known["pattern"]) | st.sampled_from(odd)
    return {
        "boolean": st.booleans(),
        "integer": st.integers(known.get("minimum"), 10**15),
        "number": st.floats(known.get("minimum"), known.get("maximum"), allow_infinity=False),
        "string": st.text(),
    }[known["type"]]


SETTINGS = settings_schema()["properties"] | {"startup-taint": TEXTS[settingvalues.taint_key]}


@pytest.mark.parametrize("name", SETTINGS)
@given(st.data())
def test_what_the_schema_takes_the_agent_takes(name, data):
    from jsonschema import Draft7Validator  # takes long to load

    known = SETTINGS[name]
    value = data.draw(values_of(known))
    # Python's $ is also before a last line feed, Go's is not.
    assume(not str(value).endswith("\n") and Draft7Validator(known).is_valid(value))
    text = value if isinstance(value, str) else json.dumps(value)
    # As in a pod, which has an API server: mode dra needs one.
    flags = {"kubeconfig": "/kubeconfig", name.replace("-", "_"): text}
    settings = config.load(flags, {"NODE_NAME": "n1"})
    if settings.simulate and "/" not in text and not text.endswith(".toml"):
        assert boxes.load(settings.simulate)


def test_what_the_chart_decides_are_settings_of_the_agent():
    assert CHARTS_OWN.keys() <= Settings.__dataclass_fields__.keys()
    (container,) = find("gpuagent.yaml", "DaemonSet")["spec"]["template"]["spec"]["containers"]
    given = {text.removeprefix("--").partition("=")[0] for text in container["args"]}
    assert {name.replace("-", "_") for name in given} <= CHARTS_OWN.keys()


@pytest.mark.parametrize(
    ("name", "minor"), [(name, minor) for name, minors in SINCE.items() for minor in minors if minor >= FIRST_SCHEMA]
)
def test_every_object_has_a_schema_in_each_version(name, minor):
    import kubernetes_validate  # as long

    for one in objects(name):
        kubernetes_validate.validate(one, f"1.{minor}", strict=True)


@pytest.mark.parametrize("name", PLAIN)
def test_the_agents_container_has_no_rights(name):
    template = find(name, "DaemonSet")["spec"]["template"]
    pod = template["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    if name == "gpuagent-1.18.yaml":
        assert template["metadata"]["annotations"] == {"seccomp.security.alpha.kubernetes.io/pod": "runtime/default"}
    else:
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["priorityClassName"] == "system-node-critical"
    assert VALUES["policy"] == 5


def test_the_policy_of_nodes_takes_the_longest_annotation_of_the_agent():
    """Units are below a million: one of 1 MiB on a GPU of a terabyte."""
    (rule,) = (one["expression"] for one in policy("nodes")["validations"] if "newAnnotations.all" in one["expression"])
    assert re.findall(r"key == '([^']+)' && size\(variables.newAnnotations\[key\]\) <= (\d+)", rule) == [
        (NODE_GPUS_ANNOTATION, "4096"),
        (HELD_GPUS_ANNOTATION, str(MOST_TEXT)),
        (KNOWN_GPUS_ANNOTATION, "8192"),
    ]
    known = {f"GPU-{n:036}": FormerGpu("00000000:00:00.0", 4 << 20) for n in range(MOST_FORMER)}
    assert len(former_gpus_text(known)) < 8192
    gpus = tuple(NodeGpu(n, 10**6, 100, whole=True) for n in range(MOST_GPUS))
    assert len(node_gpus_text(NodeGpus(gpus, 10**6, 10**6, 100, both=False, links="0" * 16))) < 4096


def test_the_policy_lets_the_agent_set_the_annotations_that_it_knows():
    (policy,) = (
        one
        for one in objects("gpuagent.yaml")
        if (one["kind"], one["metadata"]["name"]) == ("ValidatingAdmissionPolicy", "gpuagent-pods")
    )
    (own,) = (one["expression"] for one in policy["spec"]["variables"] if one["name"] == "ownAnnotations")
    assert set(re.findall(r"'([^']+)'", own)) == {*WRITTEN_KEYS, LIMIT_STATUS_ANNOTATION}


def test_the_policy_of_limits_names_the_annotations_that_the_agent_reads_and_writes():
    (found,) = (
        one
        for one in objects("gpuagent.yaml")
        if (one["kind"], one["metadata"]["name"]) == ("ValidatingAdmissionPolicy", "gpu-mem-limits")
    )
    (keys,) = (one["expression"] for one in found["spec"]["variables"] if one["name"] == "limits")
    assert set(re.findall(r"'([^']+)'", keys)) == {LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION}


def test_the_policy_of_decisions_names_what_schedulers_and_agents_write_on_pods():
    (found,) = (
        one
        for one in objects("gpuagent.yaml")
        if (one["kind"], one["metadata"]["name"]) == ("ValidatingAdmissionPolicy", "gpu-decisions")
    )
    (keys,) = (one["expression"] for one in found["spec"]["variables"] if one["name"] == "decisions")
    assert set(re.findall(r"'([^']+)'", keys)) == {*WRITTEN_KEYS, COMMIT_ANNOTATION}


def leaves(values: dict[str, Any], path: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in values.items():
        below = f"{path}.{key}" if path else key
        found |= (
            leaves(value, below)
            if isinstance(value, dict) and value and key not in {"resources", "labels"}
            else {below}
        )
    return found


def test_every_value_is_in_the_reference_once():
    page = (FOLDER.parent / "docs/reference/chart-values.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(described) == len(set(described))
    values = leaves(VALUES)
    assert values <= set(described)
    for name in set(described) - values:
        is_group = any(value.startswith(f"{name}.") for value in values)
        is_part = any(name.startswith(f"{value}.") for value in values)
        assert is_group or is_part, name


def test_the_schema_has_every_value():
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))

    def check(values: dict[str, Any], at: dict[str, Any], path: str) -> None:
        for key, value in values.items():
            assert key in at["properties"], f"{path}.{key}"
            if isinstance(value, dict) and at["properties"][key].get("properties") and value:
                check(value, at["properties"][key], f"{path}.{key}")

    check(VALUES, schema, "")
    assert schema["additionalProperties"] is False


def test_nothing_of_this_folder_is_left_out_of_the_charts_files():
    assert {path.name for path in FOLDER.iterdir() if path.suffix == ".yaml"} == set(PLAIN)
    assert Path(CHART / "values.schema.json").is_file()


def test_chart_yaml_and_documents_name_the_same_versions():
    floor, newest = min(map(min, SINCE.values())), max(map(max, SINCE.values()))
    assert sorted(minor for minors in SINCE.values() for minor in minors) == list(range(floor, newest + 1))
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["kubeVersion"] == f">=1.{floor}.0-0"
    root = FOLDER.parent
    documents = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "docs/install.md", "docs/platforms.md"]
    described = {name: re.findall(FLOOR, (root / name).read_text(encoding="utf-8")) for name in documents}
    assert {name: found for name, found in described.items() if set(found) != {f"1.{floor}"}} == {}
