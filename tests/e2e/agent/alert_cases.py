"""The cases of alerts_test.yaml as promtool takes them.

promtool compares each annotation as a whole. A case has only what fills the annotations' templates (`shows`), so that
their sentences stand in the rules alone.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_TEMPLATES = {
    "pods": r"\{\{ \$pods := .*? pods in all\{\{ end \}\}",
    "problems": r"\{\{ range \$i, \$problem .*?none\{\{ end \}\}",
    "xid": r"\{\{ with query \(printf `gpuagent_gpu_last_xid.*?\{\{ end \}\}",
    "value": r"\{\{ \$value[^}]*\}\}",
}
"""The templates of annotations by the key of `shows` that has their text."""
_LABEL = re.compile(r"\{\{ \$labels\.(\w+)( \| toLower)? \}\}")


def filled(folder: Path, name: str) -> dict[str, Any]:
    """The file of promtool for the rules `name`, such as ``alerts``. Raises KeyError if a case lacks a text."""
    rules_file = folder / f"{name}.yaml"
    groups = yaml.safe_load(rules_file.read_text(encoding="utf-8"))["groups"]
    annotations = {rule["alert"]: rule["annotations"] for group in groups for rule in group["rules"]}
    # As texts: `0x40` is forty times zero for promtool, and a number to YAML.
    cases = (folder / f"{name}_test.yaml").read_text(encoding="utf-8")
    file: dict[str, Any] = yaml.load(cases, Loader=yaml.BaseLoader)  # noqa: S506 (makes texts only)
    file["rule_files"] = [str(rules_file)]
    for test in file["tests"]:
        for case in test["alert_rule_test"]:
            templates = annotations[case["alertname"]]
            case["exp_alerts"] = [_expected(alert, templates) for alert in case["exp_alerts"]]
    return file


def _expected(alert: Mapping[str, Any], templates: Mapping[str, str]) -> dict[str, Any]:
    """An alert as promtool expects it."""
    labels = alert["exp_labels"]
    shows = alert.get("shows", {})
    texts = {key: _with_texts(template, labels, shows) for key, template in templates.items()}
    return {"exp_labels": labels, "exp_annotations": texts}


def _with_texts(template: str, labels: Mapping[str, str], shows: Mapping[str, str]) -> str:
    text = template
    for key, pattern in _TEMPLATES.items():
        text = re.sub(pattern, lambda _, key=key: shows[key], text)  # type: ignore[misc]
    return _LABEL.sub(lambda match: labels[match[1]].lower() if match[2] else labels[match[1]], text)
