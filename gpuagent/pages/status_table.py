"""The status page as a table for people."""

import textwrap
from collections.abc import Sequence
from typing import Any

from gpuagent.pages.columns import align


def render(page: dict[str, Any]) -> str:
    """A few lines of facts, the GPUs, the resources, their holders, and problems."""
    label = next(iter(page["label"].values()))
    head = {
        "node": page["node"] or "-",
        "mode": f"{page['mode']} (label: {label or 'none'})",
        "placement": page["placement"],
        "isolation": " ".join(filter(None, (page["isolation"]["driver"], page["isolation"]["version"]))),
        "unit": page["memory_unit"],
        "gpuagent": page["version"],
    }
    facts = ["   ".join(f"{name} {value}" for name, value in head.items())]
    waiting = page["switch"]["waiting_for"]
    if page["switch"]["phase"] != "steady":
        names = ", ".join(sorted({item["container"] for item in waiting})) or "old devices to leave kubelet's list"
        facts.append(f"mode switch {page['switch']['phase']}: waits for {names}")
    parts = ["\n".join(facts), _gpus(page["gpus"]), _resources(page["resources"])]
    if page["isolation"]["caveats"]:
        lines = (f"- {caveat}" for caveat in page["isolation"]["caveats"])
        parts.append("\n".join((f"isolation by {page['isolation']['driver']}:", *lines)))
    if page["problems"]:
        parts.append("\n".join(f"! {problem['reason']}: {problem['message']}" for problem in page["problems"]))
    return "\n\n".join(part for part in parts if part)


def _gpus(gpus: Sequence[dict[str, Any]]) -> str:
    if not gpus:
        return "no GPUs"
    rows = [["GPU", "MODEL", "MEMORY", "HEALTH", "HELD/UNITS", "CONTAINERS"]]
    for gpu in gpus:
        names = {**dict.fromkeys(gpu["units"], 0), **gpu["held"]}
        amounts = [_amount(name, gpu["held"].get(name, 0), gpu["units"].get(name)) for name in names]
        holders = [f"{c['container']}={c['units']}" for c in gpu["containers"]]
        cause = "recovering" if gpu["recovering"] else gpu["cause"]
        health = "MIG" if gpu["mig"] else textwrap.shorten(cause or gpu["health"], 32, placeholder=" …")
        rows.append(
            [
                str(gpu["index"]),
                gpu["model"],
                f"{gpu['memory_mib']} MiB",
                health,
                ", ".join(amounts) or "-",
                ", ".join(holders) or "-",
            ]
        )
    return align(rows)


def _amount(resource: str, held: int, units: int | None) -> str:
    short = resource.rpartition("/")[2]
    return f"{held} {short} of a former mode" if units is None else f"{held}/{units} {short}"


def _resources(resources: dict[str, dict[str, Any]]) -> str:
    rows = [["RESOURCE", "HEALTHY", "UNHEALTHY", "KUBELET"]]
    for name, view in resources.items():
        state = view.get("stage", "-") + (f": {view['problem']}" if view.get("problem") else "")
        rows.append([name, str(view["healthy"]), str(view["unhealthy"]), state])
    return align(rows)
