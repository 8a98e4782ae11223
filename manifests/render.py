"""Makes what in this folder follows from the rest: the schema's settings, the Events' reasons, and plain YAML.

``python -m manifests.render HELM`` writes, ``make manifests`` calls it; tests say when that was forgotten.
"""

import hashlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_args

from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, GPU_WHOLE
from gpuagent.domain.sharing.units import MEMORY_UNIT, MemoryUnit
from gpuagent.settings import values
from gpuagent.settings.settings import Settings
from gpuagent.settings.table import setting_key
from gpuagent.simulation import boxes
from gpuscheduler.scheduler_settings import SchedulerSettings

FOLDER = Path(__file__).parent
CHART = FOLDER / "helm" / "gpuagent"
SCHEMA = CHART / "values.schema.json"
REASONS = CHART / "templates" / "_reasons.tpl"

CHARTS_OWN = {
    "node_name": "the pod's node",
    "kubeconfig": "the pod's service account",
    "http_address": "http.port",
    "kubelet_dir": "paths.kubelet",
    "state_dir": "paths.state",
    "cdi_dir": "paths.cdi",
    "mps_pipe_dir": "mps.directory",
    "mps_start": "mps: never by the agent, whose end would end the daemon",
    "limits_socket": "limits: the folder that the agent and its helper share",
    "startup_taint": "startupTaint",
    "idle_policy": "idlePolicy, with the rights that it needs",
    "live_resize": "liveResize, where the chart's policy guards the annotation",
}
"""Settings that the chart decides itself, and by which of its values."""

SCHEDULER_CHARTS_OWN = {
    "kubeconfig": "the pod's service account",
    "listen": "the address in kube-scheduler's configuration",
    "tls_cert_file": "plain HTTP, on the loopback of the pod",
    "tls_private_key_file": "plain HTTP, on the loopback of the pod",
    "client_ca_file": "plain HTTP, on the loopback of the pod",
    "http_address": "the port of the probes",
    "lease": "the one of kube-scheduler's configuration",
    "scheduler_name": "scheduler.name",
}
"""Settings of the scheduler that the chart decides itself, and what it takes them from."""

PLAIN: Mapping[str, tuple[str, str]] = {
    "gpuagent.yaml": ("1.36", "Kubernetes 1.30 and later"),
    "gpuagent-1.19-to-1.29.yaml": ("1.19", "Kubernetes 1.19 to 1.29, which have no admission policies"),
    "gpuagent-1.18.yaml": ("1.18", "Kubernetes 1.18, which has no admission policies, and seccomp as an annotation"),
}
"""Plain YAML by file name: the version that Helm renders it for, and where it fits."""


_SECONDS = {"type": "number", "minimum": 0, "maximum": values.MOST_SECONDS}
NUMBERS: Mapping[Any, dict[str, Any]] = {
    values.count: {"type": "integer", "minimum": 1},
    values.seconds: _SECONDS,
    values.count_or_off: {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["off"]}]},
    values.seconds_or_off: {"anyOf": [_SECONDS, {"enum": ["off"]}]},
}
"""The schema of a number, by its parser."""


def _refused(schema: dict[str, Any], instead: str) -> dict[str, Any]:
    """Refuses what has this schema. Helm then says what to write instead: of `not` it says only that it failed."""
    return {"if": schema, "then": {"const": instead}}


TEXTS: Mapping[Any, dict[str, Any]] = {
    MemoryUnit.parse: {"pattern": f"^{MEMORY_UNIT.pattern}$"},
    values.xids: {"pattern": f"^{values.XIDS.pattern}$"},
    values.resource: {
        "pattern": f"^({values.RESOURCE.pattern})?$",
        **_refused(
            {"pattern": values.RESERVED_RESOURCE.pattern},
            "a resource of another name, such as nvidia.com/gpu: this one belongs to Kubernetes or to the agent",
        ),
        "maxLength": values.LONGEST_KEY,
    },
    values.taint_key: {
        "pattern": f"^({values.TAINT_KEY.pattern})?$",
        **_refused(
            {"pattern": values.RESERVED_TAINT.pattern},
            "a taint of your own, such as example.com/gpu-starting: Kubernetes sets and removes this one itself",
        ),
        "maxLength": values.LONGEST_KEY,
    },
    # Its folder becomes a mount of the pod.
    values.path_or_off: {"pattern": "^(off|(/[^/:]+)+/[^/:]+)$"},
}
"""The schema of a text, by the parser that refuses all others."""


def settings_schema() -> dict[str, Any]:
    """The schema of `settings`: every setting of the agent but the chart's own, by flag name."""
    return _schema("agent", (one for one in fields(Settings) if one.name not in CHARTS_OWN))


def scheduler_settings_schema() -> dict[str, Any]:
    """The schema of `scheduler.settings`, likewise."""
    return _schema("scheduler", (one for one in fields(SchedulerSettings) if one.name not in SCHEDULER_CHARTS_OWN))


def _schema(program: str, operators: Iterable[Field[Any]]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": f"Settings of the {program} by flag name; some are values of the chart, see docs/install.md.",
        "additionalProperties": False,
        "properties": {setting_key(one.name): _of(one) for one in operators},
    }


def _of(setting: Field[Any]) -> dict[str, Any]:
    parse, description = setting.metadata["parse"], {"description": setting.metadata["help"]}
    if setting.name == "simulate":
        return {"type": "string", "anyOf": [{"enum": ["", *boxes.names()]}, {"pattern": r"/|\.toml$"}]} | description
    if parse is values.is_on:
        return {"type": "boolean"} | description
    if parse is values.step:
        return {"enum": [n for n in range(1, CORE_PERCENT_PER_GPU + 1) if CORE_PERCENT_PER_GPU % n == 0]} | description
    if parse in NUMBERS:
        return NUMBERS[parse] | description
    return {"type": "string"} | (TEXTS.get(parse) or _choice(parse)) | description


def _choice(parse: Any) -> dict[str, Any]:  # noqa: ANN401 (any parser)
    """The values that a parser names when it refuses one."""
    try:
        parse("\0")
    except ValueError as err:
        _, found, choices = str(err).partition(" is not one of ")
        return {"enum": choices.split(", ")} if found else {}
    return {}


def digest() -> str:
    """The digest of the chart's files, from which the plain YAML is rendered."""
    made_of = hashlib.sha256()
    for file in sorted(path for path in CHART.rglob("*") if path.is_file()):
        made_of.update(f"{file.relative_to(CHART)}\0".encode() + file.read_bytes() + b"\0")
    return made_of.hexdigest()[:16]


def plain(helm: str, name: str) -> str:
    """One of the plain YAML files, as it should be."""
    version, fits = PLAIN[name]
    command = [helm, "template", "gpuagent", str(CHART), "--namespace=kube-system", f"--kube-version={version}"]
    command += ["--set", "image.repository=gpuagent", "--skip-tests"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 (Helm)
    return (
        f"# Made from helm/gpuagent ({digest()}) with `make manifests`: do not edit.\n"
        f"# For {fits}.\n"
        f"# For other values than the chart's own, use Helm; docs/install.md says how.\n{made}"
    )


def reasons() -> str:
    """A template with the reasons of the agent's Events, as a list of CEL."""
    names = ", ".join(f"'{reason}'" for reason in get_args(EventReason))
    lines = textwrap.wrap(f"[{names}]", 110)
    return "\n".join(('{{- define "gpuagent.reasons" -}}', *lines, "{{- end }}")) + "\n"


def extended_resource_schema() -> dict[str, Any]:
    """The schema of `dra.extendedResource`: a resource of others, or the agent's own for whole GPUs."""
    return {"type": "string", "anyOf": [{"const": GPU_WHOLE}, TEXTS[values.resource]]}


def write_schema() -> None:
    """Put the settings, the start-up taint and the extended resource into the chart's schema.

    The rest of the schema is written by hand.
    """
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    schema["properties"]["settings"] = settings_schema()
    schema["properties"]["scheduler"]["properties"]["settings"] = scheduler_settings_schema()
    schema["properties"]["startupTaint"] = {"type": "string"} | TEXTS[values.taint_key]
    schema["properties"]["dra"]["properties"]["extendedResource"] = extended_resource_schema()
    SCHEMA.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


def main(helm: str) -> int:
    """Write all of it."""
    write_schema()
    REASONS.write_text(reasons(), encoding="utf-8")
    for name in PLAIN:
        (FOLDER / name).write_text(plain(helm, name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
