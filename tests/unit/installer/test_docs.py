"""docs/installer.md shows what the commands print on the fake host, and names every check, policy and code."""

import os
import re
import shlex
from pathlib import Path

import pytest

from gpuagent.host import cgpu_proc
from tests.unit.installer.fakehost import CONTAINER

PAGE = Path(__file__).parents[3] / "docs/installer.md"
PROMPT = "$ gpu-isolation-installer "


def events(text: str) -> list[tuple[str, str]]:
    """What happens to the fake host, and the blocks of commands with what they print, in order."""
    return re.findall(r"<!-- fake: (\w+) -->|^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def happen(host, name: str) -> None:
    config = "var/lib/kubelet/config.yaml"
    actions = {
        "static": lambda: host.write(config, "cpuManagerPolicy: static\n"),
        "none": lambda: host.write(config, "cpuManagerPolicy: none\n"),
        "instance": lambda: (host.instance(), host.write("compute-apps", "4200, GPU-0, 512\n")),
        "container": lambda: host.container(900),
        "end": lambda: (host.end(900), host.ends(CONTAINER[:12])),
    }
    actions[name]()


def printed(run, package_of, line: str) -> str:
    packages = {
        "/srv/cgpu-1.5.10": package_of("1.5.10"),
        "/srv/cgpu-1.5.12": package_of("1.5.12"),
        "/srv/cgpu-1.5.14-broken": package_of("1.5.14", broken=True),
    }
    arguments = [packages.get(word, word) for word in shlex.split(line.removeprefix(PROMPT))]
    result = run(*arguments)
    errors = [line for line in result.err.splitlines(keepends=True) if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    return result.out + "".join(errors)


def test_the_samples_are_what_the_commands_print(host, run, package_of):
    text = PAGE.read_text(encoding="utf-8")
    renewed, samples = text, 0
    for name, block in events(text):
        if name:
            happen(host, name)
            continue
        lines = [line for line in block.splitlines() if line.startswith(PROMPT)]
        fresh = "".join(f"{line}\n{printed(run, package_of, line)}" for line in lines)
        renewed = renewed.replace(f"```console\n{block}```", f"```console\n{fresh}```", 1)
        samples += len(lines)
    assert samples > 10
    if os.environ.get("RENEW"):  # rewrites the samples; see what changed before you commit it
        PAGE.write_text(renewed, encoding="utf-8")
    assert renewed == text


@pytest.mark.parametrize("policy", cgpu_proc.POLICIES.values(), ids=lambda policy: policy.name)
def test_every_policy_is_reported(policy):
    assert f"| {policy.number} | `{policy.name}` | {policy.rule} |" in PAGE.read_text(encoding="utf-8")
