"""Pods of a tenant who tries to get more of a GPU than the share that was asked for."""

import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gpuagent.domain.sharing.mode import GPU_MEM
from gpuagent.simulation import boxes
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.limits.helper import BOX, Helper
from tests.e2e.cluster import WAIT_S, container, pod_manifest

Json = dict[str, Any]


class Driver(Protocol):
    """What containers of attackers need."""

    @property
    def attack(self) -> Path:
        """The folder with their program and the driver's socket."""


ATTACKER = "/attack/attacker"
GPU = boxes.load(BOX).gpus[0].uuid
"""The first pods of a node get their shares here."""
OTHER_GPU = boxes.load(BOX).gpus[1].uuid
UNITS = 4
"""Of the 80 that a GPU has."""
MIB = 1 << 20
READY = "ready"
PROCESSES = 5
"""So many of them print that they are ready, in the way `processes`."""


def share(units: int = UNITS) -> int:
    """Bytes that so many units are."""
    return boxes.load(BOX).gpus[0].memory_mib * units // 80 * MIB


def attack(how: str, gpu: str = GPU, *arguments: str) -> list[str]:
    """The command of a container."""
    return [ATTACKER, how, gpu, *arguments]


def attacking_pod(
    name: str,
    driver: Driver,
    command: Sequence[str],
    *,
    units: int = UNITS,
    env: Mapping[str, str] | None = None,
    others: Sequence[Json] = (),
    restart_policy: str = "Never",
) -> Json:
    """A pod with one container `main`, and `others`; all of them can reach the driver."""
    made = pod_manifest(name, {GPU_MEM: units}, command=command, restart_policy=restart_policy)
    made["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in (env or {}).items()]
    made["spec"]["containers"] += others
    mount_driver(made, driver)
    return made


def mount_driver(manifest: Json, driver: Driver) -> None:
    """Let all containers of a pod reach the driver, and the attackers' program."""
    spec = manifest["spec"]
    spec["volumes"] = [{"name": "attack", "hostPath": {"path": str(driver.attack)}}]
    for each in (*spec.get("initContainers", ()), *spec["containers"]):
        each["volumeMounts"] = [{"name": "attack", "mountPath": "/attack"}]


def without_device(name: str, command: Sequence[str]) -> Json:
    """A container that has asked for nothing."""
    return container(name, {}, command=command)


def wait_ready(node: Node, pod: str, container: str = "main", times: int = 1) -> str:
    """Wait until the attackers of a container have all that they can get; what they have printed."""
    end = time.monotonic() + WAIT_S
    while (log := node.cluster.pod_log(pod, container)).count(READY) < times:
        assert "failed" not in log, log
        assert time.monotonic() < end, f"{pod}/{container} printed {log!r}"
        time.sleep(0.05)
    return log


def wait_said(file: Path) -> None:
    """Wait until an attacker that writes to a file has all that it can get."""
    end = time.monotonic() + WAIT_S
    while not file.exists() or READY not in file.read_text():
        assert time.monotonic() < end, f"it wrote {file.read_text() if file.exists() else 'nothing'!r}"
        time.sleep(0.05)


def enter(node: Node, pod: str, command: Sequence[str], container: str = "main") -> None:
    """Run an attacker in a container that runs, and wait until it has what it can get. It stays."""
    # A file of its own: in that of an earlier attacker, its words may still be.
    said = f"/tmp/said-{uuid.uuid4().hex}"
    script = f"{' '.join(command)} > {said} 2>&1 < /dev/null & until grep -q {READY} {said}; do sleep 0.1; done"
    done = node.cluster.execute(pod, "/bin/sh", "-c", script, container=container)
    assert done.returncode == 0, done.stderr


def wait_unused(helper: Helper) -> None:
    """Wait until nobody has memory of the GPU: a program that was killed may not have ended yet."""
    end = time.monotonic() + WAIT_S
    while used := helper.used(GPU):
        assert time.monotonic() < end, f"{used} bytes are still in use"
        time.sleep(0.05)


def container_restarts(pod: Json) -> int:
    """How often container `main` was restarted and runs again."""
    status = pod["status"]["containerStatuses"][0]
    return int(status["restartCount"]) if "running" in status["state"] else 0
