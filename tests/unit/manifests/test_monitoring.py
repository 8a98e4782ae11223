"""Alert rules and dashboards ask for metrics that there are, lead somewhere, and are all tested."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.gpus.health_verdict import APPLICATION_XIDS
from gpuagent.metrics.families import CHAPTERS
from gpuscheduler import metrics as scheduler_metrics
from tests.e2e.agent.prometheus import documented

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "manifests/helm/gpuagent/monitoring"
FAMILIES = {
    family.name: family
    for chapters in (CHAPTERS, scheduler_metrics.CHAPTERS)
    for families in chapters.values()
    for family in families
}
RULES = {
    rule["alert"]: rule
    for name in ("alerts.yaml", "scheduler-alerts.yaml")
    for group in yaml.safe_load((MONITORING / name).read_text())["groups"]
    for rule in group["rules"]
}
TESTS = [
    test
    for name in ("alerts_test.yaml", "scheduler-alerts_test.yaml")
    for test in yaml.safe_load((MONITORING / name).read_text())["tests"]
]
DOCUMENTED = documented(ROOT)
INTRO, *_SECTIONS = re.split(r"^### ", (ROOT / "docs/problems.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
SECTIONS = {name.lower(): text for name, _, text in (section.partition("\n") for section in _SECTIONS)}
"""The sections of the page of problems, by their anchors."""
LED_TO = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in RULES.values()}
BY_REASON = "{{ $labels.reason | toLower }}"
DASHBOARDS = {
    name: json.loads((MONITORING / f"{name}.json").read_text()) for name in ("dashboard", "scheduler-dashboard")
}
LIMIT = "gpuagent_container_gpu_memory_limit_bytes"
TARGET_LABELS = {"instance", "job", "le"}


def panels() -> list[dict[str, Any]]:
    return [panel for dashboard in DASHBOARDS.values() for panel in flat(dashboard) if panel["type"] != "row"]


def flat(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels of a dashboard, also those in rows that are closed."""
    return [one for panel in dashboard["panels"] for one in (panel, *panel.get("panels", ()))]


def queries() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    variables = [
        variable["query"]["query"]
        for dashboard in DASHBOARDS.values()
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
    return [*asked, *variables]


def names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:gpuagent|gpuscheduler|nvidia|process)_[a-z_]+", expression))


def base(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name) if name not in FAMILIES else name


ASKED_IN = {
    "alerts": [rule["expr"] for rule in RULES.values()],
    "descriptions of alerts": [
        re.sub(r"First run `[^`]*`", "", rule["annotations"]["description"]) for rule in RULES.values()
    ],
    "dashboards": queries(),
    **{
        page: [text for at, text in DOCUMENTED.items() if at.startswith(f"{page}#")]
        for page in sorted({at.partition("#")[0] for at in DOCUMENTED})
    },
}
"""PromQL expressions by where they stand."""


@pytest.mark.parametrize("place", ASKED_IN)
def test_every_metric_that_is_asked_for_exists_with_its_labels(place: str) -> None:
    expressions = ASKED_IN[place]
    assert expressions
    for expression in expressions:
        for name in names(expression):
            assert base(name) in FAMILIES or name.startswith("process_"), (name, expression)
        for name, selector in re.findall(r"\b(gpu(?:agent|scheduler)_[a-z_]+)\{([^}]*)\}", expression):
            asked = set(re.findall(r"(\w+)\s*[=!]~?=?\"", selector))
            assert asked <= {*FAMILIES[base(name)].labels, *TARGET_LABELS}, (name, asked)


def test_promql_in_documents_stands_in_blocks_that_a_real_prometheus_runs() -> None:
    """tests/e2e/agent/test_metrics.py takes the blocks; an expression elsewhere would be tried by nothing."""
    assert len(DOCUMENTED) > 3
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        loose = [
            one for one in re.findall(r"`([^`\n]+)`", text) if names(one) and re.search(r"\bon ?\(|\bby ?\(|\[\d", one)
        ]
        loose += [one for one in re.findall(r"`([^`\n]+)`", text) if re.search(r"group_(left|right) \(\w+\)", one)]
        assert loose == [], page


def test_every_metric_is_asked_for_somewhere() -> None:
    """A metric that no alert, panel or documented query wants answers no question. arena asks for its own."""
    expressions = [*queries(), *(rule["expr"] for rule in RULES.values()), *DOCUMENTED.values()]
    asked = {base(name) for text in expressions for name in names(text)}
    assert {name for name in FAMILIES if not name.startswith("nvidia_")} - asked == set()


@pytest.mark.parametrize("name", RULES)
def test_every_alert_says_how_bad_what_and_where_to_read_on(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/problems.md"
    assert anchor in {*SECTIONS, BY_REASON}
    led_to = [anchor] if anchor != BY_REASON else [reason.lower() for reason in get_args(EventReason)]
    told_of = [SECTIONS[section] for section in led_to if section in SECTIONS]
    assert any(re.search(rf"^\*\*Alert:\*\* .*`{name}`", text, re.MULTILINE) for text in told_of)


def pods_in(query: str, labels: str) -> str:
    """What a description says of the pods of a node or GPU. The template language has no functions to share."""
    return (
        f"{{{{ $pods := printf `sum by (namespace, pod) ({query})` {labels} -}}}} "
        "{{ range $i, $pod := query (printf `topk(10, %s)` $pods) | sortByLabel `pod` }}{{ if $i }}, {{ end }}"
        "{{ $pod.Labels.namespace }}/{{ $pod.Labels.pod }}{{ else }}none{{ end }} "
        "{{- with query (printf `count(%s) > 10` $pods) }} and others, {{ . | first | value }} pods in all{{ end }}."
    )


OF_NODE = f'{LIMIT}{{instance="%s"}}', "$labels.instance"
OF_GPU = f'{LIMIT}{{instance="%s",UUID="%s"}}', "$labels.instance $labels.UUID"
PODS_THAT_ARE_HIT = {
    "GPUAgentDown": pods_in(f"last_over_time({OF_NODE[0]}[1h])", OF_NODE[1]),
    "GPUAgentGone": pods_in(f"last_over_time({OF_NODE[0]}[1d])", OF_NODE[1]),
    **dict.fromkeys(
        (
            *("GPUNodeNotReady", "GPUDriverUnavailable", "GPUNodeProblem", "GPUIsolationDown", "GPUHealthWatchDown"),
            *("GPUMemoryLimitsChanged", "GPUAPIServerWatchDown", "GPUModeSwitchWaiting"),
        ),
        pods_in(*OF_NODE),
    ),
    **dict.fromkeys(
        (
            *("GPUUnhealthy", "GPUXID", "GPUUseNotAttributed", "GPUSamplesMissing"),
            *("GPUMemoryLimitNotEnforced", "GPUUsedWithoutRequest"),
        ),
        pods_in(*OF_GPU),
    ),
}
ABOUT_NO_RUNNING_POD = {
    *("GPUAgentsAbsent", "GPUResourceNotRegistered", "GPURequestsRefused", "GPUMetricsIncomplete"),
    *("GPUDeviceListNearLimit", *(name for name in RULES if name.startswith("GPUScheduler"))),
}


@pytest.mark.parametrize("name", RULES)
def test_an_alert_names_the_pods_that_are_hit(name: str) -> None:
    description = RULES[name]["annotations"]["description"]
    if name in PODS_THAT_ARE_HIT:
        assert description.endswith(PODS_THAT_ARE_HIT[name])
    elif name not in ABOUT_NO_RUNNING_POD:
        assert "{{ $labels.pod }}" in RULES[name]["annotations"]["summary"]


def first_command(section: str) -> str:
    """The first command of a section, as an alert names it: with the alert's labels in place of the variables."""
    (shell, *_) = re.findall(r"```sh\n(.*?)```", SECTIONS[section], re.DOTALL)
    lines = [line for line in shell.splitlines() if not re.match(r"([A-Z]+=|  -l )", line)]
    command = re.sub(r"\s+# .*", "", lines[0])
    of_scheduler = section.startswith("gpuscheduler")
    labels = {
        "NODE": "{{ $labels.instance }}",
        # An instance of the scheduler is a pod.
        "POD": "{{ $labels.instance }}" if of_scheduler else "{{ $labels.pod }}",
        "NAMESPACE": "{{ $labels.namespace }}",
    }
    for variable, label in labels.items():
        command = re.sub(rf'"([^"]*)\${variable}"', lambda match, label=label: f"{match[1]}{label}", command)  # type: ignore[misc]
    return command


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_which_command_to_run_first(name: str) -> None:
    """It is the first one of the section to which the alert leads, so that both say the same."""
    annotations = RULES[name]["annotations"]
    section = annotations["runbook_url"].partition("#")[2]
    named = re.findall(r"First run `([^`]+)`", annotations["description"])
    assert named == [first_command(name.lower() if section == BY_REASON else section)]


def test_an_alert_about_a_node_names_its_problems() -> None:
    problems = (
        'Its problems: {{ range $i, $problem := query (printf `gpuagent_problems{instance="%s"} > 0` $labels.instance)'
        " | sortByLabel `reason` }}{{ if $i }}, {{ end }}{{ $problem.Labels.reason }}{{ else }}none{{ end }}."
    )
    naming = {name for name, rule in RULES.items() if problems in rule["annotations"]["description"]}
    assert naming == {"GPUNodeNotReady", "GPUNodeProblem", "GPUIsolationDown", "GPUHealthWatchDown"}


def test_every_alerts_section_has_commands_that_can_be_pasted_as_they_are() -> None:
    """Each variable has its value at the top of the page or in the same section, and no word waits to be replaced."""
    for name, text in SECTIONS.items():
        shell = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        assert shell or name not in LED_TO, name
        given = set(re.findall(r"\b([A-Z]+)=", "\n".join([*re.findall(r"```sh\n(.*?)```", INTRO, re.DOTALL), shell])))
        assert set(re.findall(r"\$([A-Z]+)", shell)) <= given, name
        assert not re.search(r"(?<![\w\"$-])(?:NODE|POD|NAMESPACE)(?![\w:=\"-])", shell), name


def test_from_an_alert_to_its_commands_is_a_minute() -> None:
    """Lines of 120 columns to read, from the alert to the end of its section, and commands to paste, at most."""
    by_reason = [reason.lower() for reason in get_args(EventReason) if reason.lower() in SECTIONS]
    for name, rule in RULES.items():
        anchor = rule["annotations"]["runbook_url"].partition("#")[2]
        alert = [rule["annotations"]["summary"], *textwrap.wrap(rule["annotations"]["description"], 120)]
        for section in by_reason if anchor == BY_REASON else [anchor]:
            read = [line for part in SECTIONS[section].splitlines() for line in textwrap.wrap(part, 120)]
            shell = "\n".join(re.findall(r"```sh\n(.*?)```", SECTIONS[section], re.DOTALL))
            whole = shell.replace("\\\n", " ").splitlines()
            commands = [line for line in whole if line and not re.match(r"[A-Z]+=", line)]
            assert len(alert) + len(read) <= 60, (name, section)
            assert 1 <= len(commands) <= 3, (name, section, commands)


@pytest.mark.parametrize("name", RULES)
def test_every_alert_is_tested_to_fire_and_not_to(name: str) -> None:
    tried = [case for test in TESTS for case in test["alert_rule_test"] if case["alertname"] == name]
    assert any(case["exp_alerts"] for case in tried)
    assert any(not case["exp_alerts"] for case in tried)


def test_xids_of_programs_do_not_alert() -> None:
    left_out = re.findall(r'xid!~"([\d|]+)"', RULES["GPUXID"]["expr"])
    assert len(left_out) == RULES["GPUXID"]["expr"].count("gpuagent_gpu_xids_total{")
    assert {frozenset(map(int, one.split("|"))) for one in left_out} == {APPLICATION_XIDS}


def test_the_dashboards_panels_have_units_and_ids_of_their_own() -> None:
    for dashboard in DASHBOARDS.values():
        ids = [panel["id"] for panel in flat(dashboard)]
        assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"].get("unit"), panel["title"]
        if panel["fieldConfig"]["defaults"]["unit"] == "percentunit":
            assert all("_ratio" in t["expr"] or "/" in t["expr"] for t in panel["targets"]), panel["title"]


def test_a_legend_tells_apart_what_a_query_returns() -> None:
    """By every label of the series, but for pods: one of that name is on one node."""
    for panel in (one for one in panels() if one["type"] != "table"):
        for target in panel["targets"]:
            grouped = re.search(r"\bby \(([^)]*)\)", target["expr"])
            if grouped:
                labels = {*re.split(r",\s*", grouped[1])} - {"le"}
            elif re.match(r"(count|sum)\(", target["expr"]):
                labels = set()
            else:
                (family, *_) = names(target["expr"])
                known = FAMILIES.get(base(family))
                labels = {"instance", *(known.labels if known else ())} - {"UUID"}
            assert labels <= set(re.findall(r"{{(\w+)}}", target["legendFormat"])), panel["title"]


def test_no_panel_shows_a_bare_counter_without_saying_since_when() -> None:
    for panel in panels():
        for target in panel["targets"]:
            if re.search(r"_total{[^}]*}(?!\[)", target["expr"]):
                assert re.search("since the (agent|scheduler) started", panel["description"]), panel["title"]


def test_panels_show_the_first_of_what_begins_with_it() -> None:
    """increase() and rate() see nothing of it: the series is not there before."""
    for panel in panels():
        for target in panel["targets"]:
            for counter in ("gpuagent_gpu_xids_total", "gpuagent_refusals_total"):
                assert not re.search(rf"{counter}{{[^}}]*}}\[", target["expr"]), panel["title"]


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_the_dashboards_panels_do_not_overlap(dashboard: str) -> None:
    """Those of a closed row lie below it only while it is open."""
    shown = DASHBOARDS[dashboard]["panels"]
    for group in (shown, *(panel["panels"] for panel in shown if panel.get("panels"))):
        taken: set[tuple[int, int]] = set()
        for panel in group:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells


def test_the_first_row_is_of_the_fleet_and_the_others_of_the_chosen_node() -> None:
    """A row that is repeated for each node would be there 40 times in a cluster of 40 nodes."""
    rows = [panel for panel in DASHBOARDS["dashboard"]["panels"] if panel["type"] == "row"]
    assert not [row["title"] for row in rows if row.get("repeat")]
    assert [row["title"] for row in rows[:5]] == [
        "Fleet",
        "Use and waste in a day",
        "Node $instance",
        "GPUs of $instance",
        "Containers of $instance",
    ]
    fleet = [one for one in DASHBOARDS["dashboard"]["panels"] if one["gridPos"]["y"] < rows[2]["gridPos"]["y"]]
    assert not [target["expr"] for one in fleet for target in one.get("targets", ()) if "$" in target["expr"]]


def test_the_fleets_table_has_a_line_for_each_node() -> None:
    """Each query has one value for a node, so that Grafana merges them into one line."""
    (nodes,) = [panel for panel in panels() if panel["title"] == "Nodes" and panel["type"] == "table"]
    for target in nodes["targets"]:
        assert re.search(r"^\w+ by \(instance\b", target["expr"]), target["expr"]
    shown = nodes["transformations"][1]["options"]["renameByName"].values()
    amounts = ["GPUs", "memory", "held", "used", "largest free", "pods", "blocking problems", "warnings"]
    assert list(shown) == ["agent", *amounts]


def test_the_fleets_table_keeps_a_node_whose_agent_is_down() -> None:
    """Prometheus itself says `up` of it; the agent's own series have ended."""
    (nodes,) = [panel for panel in panels() if panel["title"] == "Nodes" and panel["type"] == "table"]
    assert any(target["expr"] == 'max by (instance) (up{job="gpuagent"})' for target in nodes["targets"])


def test_waiting_pods_are_not_said_to_be_none_where_nobody_scrapes_the_scheduler() -> None:
    (waiting,) = [panel for panel in panels() if panel["title"] == "Waiting pods"]
    (target,) = waiting["targets"]
    assert "vector(" not in target["expr"]


def test_the_drop_downs_choose_node_gpu_and_namespace() -> None:
    names = {
        name: [variable["name"] for variable in dashboard["templating"]["list"]]
        for name, dashboard in DASHBOARDS.items()
    }
    assert names == {
        "dashboard": ["datasource", "instance", "gpu", "namespace"],
        "scheduler-dashboard": ["datasource", "instance"],
    }


def test_every_alert_that_a_document_promises_exists() -> None:
    """A sentence that says of a name that it fires, or links to a section of the page of problems."""
    firing, linked = set[str](), set[str]()
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        firing.update(re.findall(r"\[`?(\w+)`?\]\([^)]*\) fires", text))
        linked.update(re.findall(r"\[`?(GPU\w+)`?\]\((?:problems\.md)?#", text))
    assert firing >= {"GPUDriverUnavailable"}
    assert firing <= set(RULES)
    assert linked <= {*RULES, *get_args(EventReason)}


def test_problems_without_an_alert_of_their_own_are_known_reasons() -> None:
    (left_out,) = re.findall(r'reason!~"([^"]*)"', RULES["GPUNodeProblem"]["expr"])
    assert set(left_out.split("|")) <= set(get_args(EventReason))
