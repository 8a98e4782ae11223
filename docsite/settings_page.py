"""docs/reference/settings.md: every setting of the agent and of the scheduler."""

import re
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from docsite.markdown import MADE, table
from gpuagent.settings import settings
from gpuagent.settings.settings import Settings
from gpuagent.settings.table import Table, setting_key
from gpuscheduler import scheduler_settings
from gpuscheduler.scheduler_settings import SchedulerSettings

AGENT_MORE = {
    "annotate_pods": "See [annotations](../annotations.md#pods-that-no-scheduler-annotated).",
    "cdi_dir": "Only mode `dra` writes there.",
    "compat_metrics": "See [metrics](../metrics.md#for-arenas-top-commands).",
    "core_mem_both": "A container that requests only compute has no memory cap.",
    "idle_policy": "See [idle pods](../operations.md#idle-pods).",
    "evict_claims": "Without it, only new claims are kept off the GPU. See [mode dra](../dra.md#health).",
    "fatal_xids": "As above, on drivers that report no recovery action.",
    "fence_file": "See [Fencing a GPU](../operations.md#fencing-a-gpu).",
    "gpu_sets": "See [mode dra](../dra.md#linked-gpus).",
    "http_address": "The pages have no authentication.",
    "memory_unit": "Change it on a [drained node](../upgrade.md#settings) only.",
    "mps_start": "See [the control daemon](../isolation-mps.md#the-control-daemon).",
    "mps_wedge": "See [a server that hangs](../isolation-mps.md#a-server-that-hangs).",
    "settle": "[Relapses](../problems.md#gpuunhealthy) double it.",
    "simulate": "A [name](../operations.md#simulated-boxes) or a TOML file.",
    "startup_taint": "Such as `example.com/gpu-starting`. See [After a reboot](../operations.md#after-a-reboot).",
    "state_dir": "Keep it outside kubelet's directories.",
    "trust_gpu_visible": "See [topology](../topology.md#seeing-a-jobs-other-gpus).",
}
"""Text that follows the help of a setting."""

SCHEDULER_MORE = {
    "lease": "Only beside the leader does gpuscheduler wake and nominate pods.",
    "client_ca_file": "See [a client certificate](../gpuscheduler.md#a-client-certificate).",
    "listen": "Keep it on the loopback. It serves no pages.",
    "policy": "See [Placement](../placement.md).",
    "scheduler_name": "Several names with commas. Pods of other schedulers count once they are bound.",
}

_CODE = re.compile(r"--[a-z-]+|/?[\w.]+(?:/[\w.-]*\w)+|/[a-z]+|\w+_\w+\*?|spec\.\w+")
"""Flags, paths, resources and variables in a help text."""


def page() -> str:
    """The page."""
    return f"""# Settings

{MADE}

Every flag has an environment variable, and a key in the TOML file that `--config FILE` names: the flag without its
dashes, `memory-unit = "2GiB"`. A flag overrides the environment, which overrides the file, which overrides the default.
An unknown setting, also in the environment, is an error: the program does not start.

## gpuagent run

`GPUAGENT_CONFIG` also names the file. In the chart these are values of `settings`, except for those that
[the chart decides](../install.md#values).

{_table(settings.TABLE, Settings, AGENT_MORE)}
## gpuscheduler run

`GPUSCHEDULER_CONFIG` also names the file. In the chart, `scheduler.settings` takes `policy` and the log settings; the
chart decides the others.

{_table(scheduler_settings.TABLE, SchedulerSettings, SCHEDULER_MORE)}"""


def _table(program: Table[Any], kind: type, more: Mapping[str, str]) -> str:
    known = {one.name for one in fields(kind)}
    if unknown := more.keys() - known:
        raise ValueError(f"no such settings: {', '.join(sorted(unknown))}")
    return table(
        ("flag", "environment", "default", "meaning"),
        (
            (f"`--{setting_key(one.name)}`", _variables(program, one), _default(one.default), _meaning(one, more))
            for one in fields(kind)
        ),
    )


def _variables(program: Table[Any], one: Field[Any]) -> str:
    return " or ".join(f"`{name}`" for name in (program.variable(one.name), one.metadata["env"]) if name)


def _default(value: object) -> str:
    if value is None or value in ("", frozenset()):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{':'.join(map(str, value)) if isinstance(value, tuple) else value}`"


def _meaning(one: Field[Any], more: Mapping[str, str]) -> str:
    text = _CODE.sub(r"`\g<0>`", one.metadata["help"])
    return f"{text}. {more.get(one.name, '')}".strip()
