"""The right to evict is given only with `idlePolicy`, and narrowed to namespaces that want it."""

from typing import Any

import pytest

from tests.chart.conftest import Chart, find


def rules(objects: list[dict[str, Any]]) -> dict[str, list[str]]:
    found = find(objects, "ClusterRole", "gpuagent")["rules"]
    return {resource: rule["verbs"] for rule in found for resource in rule["resources"]}


@pytest.mark.parametrize("version", ["1.18", "1.36"])
def test_only_the_idle_policy_gives_the_right_to_evict(chart: Chart, version: str) -> None:
    without = rules(chart.render(version=version))
    assert "pods/eviction" not in without
    assert "namespaces" not in without
    given = rules(chart.render(version=version, idlePolicy=True))
    assert given["pods/eviction"] == ["create"]
    assert given["namespaces"] == ["get"]
    assert {name: verbs for name, verbs in given.items() if name not in ("pods/eviction", "namespaces")} == without


def test_it_sets_the_agents_setting(chart: Chart) -> None:
    (container, *_) = find(chart.render(idlePolicy=True), "DaemonSet", "gpuagent")["spec"]["template"]["spec"][
        "containers"
    ]
    assert "--idle-policy=true" in container["args"]
    (container, *_) = find(chart.render(), "DaemonSet", "gpuagent")["spec"]["template"]["spec"]["containers"]
    assert not [argument for argument in container["args"] if "idle-policy" in argument]


@pytest.mark.parametrize("annotates", [True, False])
def test_the_policy_lets_the_agent_evict_only_where_the_namespace_says_so(chart: Chart, annotates: bool) -> None:
    def policy(**values: Any) -> dict[str, Any]:
        objects = chart.render(rbac={"podAnnotations": annotates}, **values)
        return dict(find(objects, "ValidatingAdmissionPolicy", "gpuagent-pods")["spec"])

    spec = policy(idlePolicy=True)
    (evicts,) = [variable["expression"] for variable in spec["variables"] if variable["name"] == "evicts"]
    assert "namespaceObject.metadata.labels['gpuagent.io/when-idle'].startsWith('evict-after-')" in evicts
    assert any("variables.evicts" in validation["expression"] for validation in spec["validations"])
    assert "evict" not in str(policy())
