"""docs/gpuscheduler.md: reasons and Events are those of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuagent.domain.sharing import mode
from gpuscheduler.core.gpu_request import RESOURCES
from gpuscheduler.scheduler_settings import SchedulerSettings
from tests.unit.docs.test_docs import ROOT, quoted, section, table

PAGE = (ROOT / "docs/gpuscheduler.md").read_text(encoding="utf-8")
CORE = ROOT / "scheduler/gpuscheduler/core"
SPEAKING = (
    CORE / "scheduling.py",
    CORE / "reasons.py",
    CORE / "node_facts.py",
    CORE / "gpu_request.py",
    CORE / "pod_facts.py",
    CORE / "jobs/jobs.py",
    CORE / "jobs/barrier.py",
    CORE / "single_pods/single_pods.py",
    CORE / "bindings.py",
)
"""The modules that say why a pod waits."""
NO_REASONS = {
    "Node … refused the pod. Pods of its owner avoid the node for … s.",
}
"""Parts of reasons, and the message of an Event."""


def texts(path: Path) -> Iterator[str]:
    """Every sentence that a module puts together or hands to kube-scheduler; `…` for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(shown(part) for part in node.values)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"BindRefused", "FilterAnswer"}:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            yield from (one.value for one in given if isinstance(one, ast.Constant))


def shown(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    known = getattr(mode, part.value.id, None) if isinstance(part.value, ast.Name) else None
    return known if isinstance(known, str) else "…"


def reasons() -> list[str]:
    chapter = section(PAGE, "Why a pod waits")
    rows = [row for first in ("reason", "Event") for row in tables(chapter, first)]
    return [quoted(row[0])[0] for row in rows]


def tables(text: str, first: str) -> Iterator[list[str]]:
    for part in re.split(rf"^(?=\| {first} \|)", text, flags=re.MULTILINE)[1:]:
        yield from table(part, first)


def pattern(heading: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in re.split(r"<[^<>]+>", heading)))


@pytest.mark.parametrize("path", SPEAKING, ids=lambda path: path.name)
def test_every_reason_is_documented(path):
    stated = [text for text in texts(path) if len(text.replace("…", "").split()) > 2 and text not in NO_REASONS]
    assert stated
    patterns = [pattern(heading) for heading in reasons()]
    missing = [
        text for text in stated if not any(one.search(text) or one.search(f"the pod {text}") for one in patterns)
    ]
    assert missing == []


def test_every_event_is_documented():
    source = "\n".join(path.read_text(encoding="utf-8") for path in CORE.rglob("*.py"))
    assert set(re.findall(r'Report\([^)]*?"([A-Z]\w+)"', source)) == {
        quoted(row[0])[0] for row in tables(section(PAGE, "Why a pod waits"), "Event")
    }


def test_the_policy_lets_every_event_pass():
    """Those of gpuscheduler, and those of kube-scheduler 1.30 to 1.36 by its source."""
    template = (ROOT / "manifests/helm/gpuagent/templates/_scheduler-policies.tpl").read_text(encoding="utf-8")
    (listed,) = re.findall(r"event\.reason in\s+\[([^]]*)\]", template)
    own = {quoted(row[0])[0] for row in tables(section(PAGE, "Why a pod waits"), "Event")}
    stock = {"Scheduled", "FailedScheduling", "Preempted", "BindingConditionsPending", "LeaderElection"}
    assert set(re.findall(r"'(\w+)'", listed)) == own | stock


def test_the_example_is_the_charts_configuration_without_a_scheduler_of_its_own():
    example = yaml.safe_load((ROOT / "examples/kube-scheduler-gpuscheduler.yaml").read_text(encoding="utf-8"))
    template = (ROOT / "manifests/helm/gpuagent/templates/_scheduler.tpl").read_text(encoding="utf-8")
    (extender,) = example["extenders"]
    for_all_pods = ROOT / "examples/kube-scheduler-gpuscheduler-all-pods.yaml"
    first, of_all_pods = yaml.safe_load(for_all_pods.read_text(encoding="utf-8"))["extenders"]
    assert first == extender
    # Otherwise no pod of the cluster would start while it is away.
    assert of_all_pods["ignorable"]
    assert "filterVerb" not in of_all_pods
    for name, value in [*extender.items(), *of_all_pods.items()]:
        if name not in {"managedResources", "httpTimeout", "urlPrefix", "enableHTTPS", "tlsConfig"}:
            assert re.search(rf"\b{name}: {str(value).lower() if isinstance(value, bool) else value}\n", template), name
    assert [one["name"] for one in extender["managedResources"]] == [*RESOURCES, mode.GPU_COUNT]
    assert SchedulerSettings().listen[1] == int(extender["urlPrefix"].rpartition(":")[2])
