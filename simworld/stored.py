"""Scenarios in files: what was found once is played again in each run of the tests.

A seed names another scenario as soon as the drawing changes, so the scenario itself is kept.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simworld.scenario import Action, Scenario

FOLDER = Path(__file__).parent.parent / "tests" / "unit" / "simworld" / "scenarios"


@dataclass(frozen=True, slots=True)
class Stored:
    """A scenario and why it is kept.

    Attributes:
        found: what it had found, in one line.
        fault: the fault of `put_back` that has to be put back for that; empty if the product itself had it.
        scenario: what is played.
    """

    found: str
    fault: str
    scenario: Scenario


def read_stored(path: Path) -> Stored:
    """Read a file that `keep` has written."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    scenario = dict(data["scenario"])
    actions = scenario["actions"]
    scenario["actions"] = tuple(Action(at, kind, tuple(args)) for at, kind, args in actions)
    # JSON knows no tuples.
    frozen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in scenario.items()
    }
    return Stored(data["found"], data["fault"], Scenario(**frozen))


def keep(stored: Stored, path: Path) -> None:
    """Write a scenario, one action a line."""
    scenario = asdict(stored.scenario)
    actions = scenario.pop("actions")
    lines = [json.dumps([action["at"], action["kind"], list(action["args"])]) for action in actions]
    fields = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in scenario.items()]
    rows = ",\n      ".join(lines)
    fields.append(f'    "actions": [\n      {rows}\n    ]' if rows else '    "actions": []')
    body = ",\n".join(fields)
    found = json.dumps(stored.found)
    fault = json.dumps(stored.fault)
    text = f'{{\n  "found": {found},\n  "fault": {fault},\n  "scenario": {{\n{body}\n  }}\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
