"""docs/problems.md: every problem that a node reports and every alert, with cause, effect and remedy.

The texts are in problems.toml. The code of the problems and the rules of the alerts say the rest.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from docsite.events_page import condition_false, problem_calls
from docsite.markdown import MADE

TEXTS = Path(__file__).with_name("problems.toml")
RULES = Path(__file__).parents[1] / "manifests/helm/gpuagent/monitoring"
RULE_FILES = ("alerts.yaml", "scheduler-alerts.yaml")
ANY_PROBLEM = "GPUNodeProblem"
"""The alert for every problem that no other one is about."""
_NODE = "NODE=gpu-1   # the node that the alert names"
_AGENT = """AGENT="$(kubectl -n kube-system get pod -o name --field-selector "spec.nodeName=$NODE" \\
  -l app.kubernetes.io/name=gpuagent,app.kubernetes.io/component=agent)\""""
_PLUGIN = "kubectl inspect cgpu"
_WITHOUT_PLUGIN = "Without the kubectl plugin: [other commands](#commands)"
_LOOK_AT_PROBLEMS = 'kubectl inspect cgpu --health "$NODE"'
_SHELL = "```sh\n"
_NOT_READY = {"yes": ["`GPUNodeNotReady`"], "depends": ["`GPUNodeNotReady` if the mode cannot be served"]}
"""The alert about the condition of the node, by whether a problem makes it False."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule of Prometheus, as far as the page shows it."""

    name: str
    severity: str
    after: str
    section: str
    """The section that it leads to; empty if that depends on its labels."""

    def __str__(self) -> str:
        waits = f", after {self.after}" if self.after else ""
        return f"`{self.name}` ({self.severity}{waits})"


def page() -> str:
    """The page. Raises ValueError if a problem or an alert has no section, or a section neither of them."""
    texts = tomllib.loads(TEXTS.read_text(encoding="utf-8"))
    groups = texts["group"]
    alerts = list(_alerts())
    sections = [name for group in groups for name in group["section"]]
    _check(sections, alerts)
    chapters = "\n".join(_chapter(group, alerts) for group in groups)
    return f"""# Problems and alerts

{MADE}

{texts["intro"].strip()}

{chapters}"""


def _check(sections: list[str], alerts: list[Alert]) -> None:
    needed = {*_problems(), *(alert.section or alert.name for alert in alerts)}
    if odd := needed ^ {*sections}:
        raise ValueError(f"in {TEXTS.name} and not needed, or needed and not there: {', '.join(sorted(odd))}")


def _problems() -> set[str]:
    return problem_calls().keys() - {"Ready"}


def _alerts() -> Iterator[Alert]:
    problems = {reason.lower(): reason for reason in _problems()}
    for name in RULE_FILES:
        for group in yaml.safe_load((RULES / name).read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                alert = rule["alert"]
                anchor = rule["annotations"]["runbook_url"].partition("#")[2]
                section = "" if "{" in anchor else problems.get(anchor, alert)
                yield Alert(alert, rule["labels"]["severity"], _duration(rule.get("for", "")), section)


def _duration(prometheus: str) -> str:
    words = {"m": "minute", "h": "hour"}
    if not prometheus:
        return ""
    count, word = int(prometheus[:-1]), words[prometheus[-1]]
    return f"{count} {word}{'s' if count > 1 else ''}"


def _of_section(name: str, alerts: list[Alert]) -> list[Alert]:
    """The alerts that are about a section."""
    for_every = ANY_PROBLEM if name in _problems() - _without_any_alert() else name
    return [alert for alert in alerts if alert.section == name or (not alert.section and alert.name == for_every)]


def _without_any_alert() -> set[str]:
    """The problems that the alert for every other problem leaves out."""
    (name, *_) = RULE_FILES
    (left_out,) = re.findall(r'reason!~"([^"]*)"', (RULES / name).read_text(encoding="utf-8"))
    return {*left_out.split("|")}


def _chapter(group: dict[str, Any], alerts: list[Alert]) -> str:
    intro = f"{group['intro'].strip()}\n\n" if "intro" in group else ""
    sections = "\n".join(_section(name, texts, alerts) for name, texts in group["section"].items())
    return f"## {group['title']}\n\n{intro}{sections}"


def _section(name: str, texts: dict[str, str], alerts: list[Alert]) -> str:
    """The section of a problem or an alert. Commands come first: who comes from an alert looks before reading on."""
    look = texts.get("look", _LOOK_AT_PROBLEMS if name in _problems() else "")
    # An alert leads here, past the top of the page.
    without_plugin = f". {_WITHOUT_PLUGIN}" if _PLUGIN in look else ""
    parts = [f"**Alert:** {', '.join(_shown_alerts(name, alerts)) or 'none'}{without_plugin}"]
    if look:
        parts.append(f"{_SHELL}{look.strip()}\n```")
    parts += [
        f"**Cause:** {texts['cause'].strip()}",
        f"**Effect:** {texts['effect'].strip()}",
        f"**Remedy:** {texts['remedy'].strip()}",
    ]
    if "background" in texts:
        parts.append(f"**Background:** {texts['background'].strip()}")
    text = "\n\n".join(parts)
    return f"### {name}\n\n{_with_variables(text)}\n"


def _with_variables(text: str) -> str:
    """The text, whose first block of commands sets what its commands need, so that it can be pasted as it is."""
    needed = []
    if "$NODE" in text or "$AGENT" in text:
        needed.append(_NODE)
    if "$AGENT" in text:
        needed.append(_AGENT)
    settings = "".join(f"{line}\n" for line in needed)
    return text.replace(_SHELL, f"{_SHELL}{settings}", 1)


def _shown_alerts(name: str, alerts: list[Alert]) -> Iterator[str]:
    if name in _problems():
        of_node = condition_false(problem_calls()[name])
        yield from _NOT_READY.get(of_node, ())
    for alert in _of_section(name, alerts):
        # How long it waits stands in its own section.
        yield f"`{alert.name}`" if alert.name == ANY_PROBLEM != name else str(alert)
