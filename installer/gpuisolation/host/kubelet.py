"""Settings of the running kubelet, from its own arguments and the files that they name. Reads only."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gpuagent.system import yaml_text
from gpuisolation.host.root import Host

ROOT_DIR = "/var/lib/kubelet"
"""Of a kubelet without `--root-dir`."""
USUAL_CONFIG = f"{ROOT_DIR}/config.yaml"
"""Where kubeadm and others put it. A kubelet that runs without `--config` reads no file."""
_K3S = {"k3s": "/etc/rancher/k3s/config.yaml", "rke2": "/etc/rancher/rke2/config.yaml"}
"""Distributions with a kubelet inside, and the file that has its arguments too, unless a flag names another."""


@dataclass(frozen=True, slots=True)
class CpuPolicy:
    """A kubelet's CPU manager policy.

    Attributes:
        policy: `none`, `static` or a later one; empty if it is not known.
        source: where it was read, for people.
        runs: whether a running kubelet has it. Otherwise it is what a file in the usual place says.
        root_dir: kubelet's directory, which has its `cpu_manager_state`.
    """

    policy: str = ""
    source: str = ""
    runs: bool = False
    root_dir: str = ROOT_DIR


@dataclass(frozen=True, slots=True)
class _Kubelet:
    pid: int
    arguments: tuple[str, ...]

    def flag(self, name: str) -> str:
        """The value of a flag, the last one if it stands several times; empty if it is not set.

        Kubelet takes `_` for `-` in names of flags.
        """
        values = list(_values(self.arguments, f"--{name}"))
        return values[-1] if values else ""


def cpu_policy(host: Host) -> CpuPolicy:
    """The policy of the running kubelet. If several run, as with clusters in containers, one with `static` counts."""
    policies = [_policy_of(host, kubelet) for kubelet in _running(host)]
    static = [policy for policy in policies if policy.policy == "static"]
    if static:
        return static[0]
    if policies:
        return policies[0]
    config = _mapping(host.text(USUAL_CONFIG))
    if config is None:
        return CpuPolicy()
    return CpuPolicy(_in_config(config) or "none", USUAL_CONFIG)


def without_pod_cgroups(host: Host) -> str:
    """Where a running kubelet is told to make no cgroups of pods; empty if none is."""
    for kubelet in _running(host):
        flag = kubelet.flag("cgroups-per-qos")
        source = _switched_off(host, kubelet, "cgroupsPerQOS")
        if flag == "false":
            return "kubelet's flag"
        if source and not flag:
            return source
    return ""


def _switched_off(host: Host, kubelet: _Kubelet, key: str) -> str:
    """The configuration file that sets a switch to false, if no later one sets it to true; empty: none."""
    source = ""
    for path in _config_files(host, kubelet):
        config = _mapping(_file_of(host, kubelet, path)) or {}
        if key in config:
            source = path if config[key] is False else ""
    return source


def _policy_of(host: Host, kubelet: _Kubelet) -> CpuPolicy:
    root_dir = kubelet.flag("root-dir") or ROOT_DIR
    policy_flag = kubelet.flag("cpu-manager-policy")
    if policy_flag:
        return CpuPolicy(policy_flag, "kubelet's flag", True, root_dir)
    policy = "none"
    source = "kubelet's default"
    # Files of the directory come after the file, in the order of their names. The last policy counts.
    for path in _config_files(host, kubelet):
        config = _mapping(_file_of(host, kubelet, path))
        if config is None:
            return CpuPolicy("", f"{path}, which cannot be read", True, root_dir)
        policy_here = _in_config(config)
        if policy_here:
            policy = policy_here
            source = path
        elif source == "kubelet's default":
            source = path
    return CpuPolicy(policy, source, True, root_dir)


def _config_files(host: Host, kubelet: _Kubelet) -> Iterator[str]:
    if config := kubelet.flag("config"):
        yield config
    if directory := kubelet.flag("config-dir"):
        names = host.names(_absolute(host, kubelet, directory))
        yield from (f"{directory}/{name}" for name in names if name.endswith(".conf"))


def _mapping(text: str | None) -> Mapping[str, Any] | None:
    """The settings in a file, in YAML or JSON; None if it cannot be read. A file of comments has no settings."""
    if text is None:
        return None
    try:
        settings = yaml_text.load(text)
    except (ValueError, RecursionError):
        return None
    if settings is None:
        return {}
    return settings if isinstance(settings, Mapping) else None


def _in_config(config: Mapping[str, Any]) -> str:
    policy = config.get("cpuManagerPolicy")
    return policy if isinstance(policy, str) else ""


def _file_of(host: Host, kubelet: _Kubelet, path: str) -> str | None:
    """A file as kubelet sees it: relative to its working directory, and in its container if it runs in one."""
    absolute = _absolute(host, kubelet, path)
    text = host.text(absolute)
    if text is not None:
        return text
    with suppress(OSError):
        inside = host.root / "proc" / str(kubelet.pid) / "root" / absolute.lstrip("/")
        return inside.read_text("utf-8", "replace")
    return None


def _absolute(host: Host, kubelet: _Kubelet, path: str) -> str:
    if path.startswith("/"):
        return path
    try:
        directory = os.readlink(host.root / "proc" / str(kubelet.pid) / "cwd")  # noqa: PTH115 (the text as it stands)
    except OSError:
        directory = "/"
    return str(PurePosixPath(directory) / path)


def _running(host: Host) -> list[_Kubelet]:
    pids = sorted(int(name) for name in host.names("/proc") if name.isascii() and name.isdigit())
    kubelets = [_kubelet(host, pid, _command_line(host, pid)) for pid in pids]
    return [kubelet for kubelet in kubelets if kubelet]


def _command_line(host: Host, pid: int) -> list[str]:
    """The program and its arguments; one empty text if they cannot be read."""
    text = host.text(f"/proc/{pid}/cmdline") or ""
    return text.rstrip("\0").split("\0")


def _kubelet(host: Host, pid: int, command_line: Sequence[str]) -> _Kubelet | None:
    """The kubelet in a process; None if there is none in it."""
    program, *arguments = command_line
    if Path(program).name.startswith("ld-linux") and arguments:
        program, *arguments = arguments
    name = Path(program).name
    first = arguments[0] if arguments else ""
    if name == "kubelet":
        return _Kubelet(pid, tuple(arguments))
    if name == "hyperkube" and first == "kubelet":
        return _Kubelet(pid, tuple(arguments[1:]))
    if name == "kubelite":
        file = _Kubelet(pid, tuple(arguments)).flag("kubelet-args-file")
        if not file:
            return None
        return _Kubelet(pid, tuple((host.text(file) or "").split()))
    if name in _K3S and first in ("server", "agent"):
        # Arguments of the command line come last, because the last value of a flag counts.
        in_files = _k3s_file_arguments(host, name, arguments)
        return _Kubelet(pid, (*in_files, *_k3s_arguments(arguments)))
    return None


def _k3s_arguments(arguments: Sequence[str]) -> Iterator[str]:
    yield from (f"--{value}" for value in _values(arguments, "--kubelet-arg"))


def _k3s_file_arguments(host: Host, name: str, arguments: Sequence[str]) -> Iterator[str]:
    """Kubelet's arguments in the configuration of k3s or RKE2, and in the directory beside it."""
    named = [*_values(arguments, "--config"), *_values(arguments, "-c")]
    config = named[-1] if named else _K3S[name]
    directory = f"{config}.d"
    yield from _k3s_arguments_in(host, config)
    for file in host.names(directory):
        yield from _k3s_arguments_in(host, f"{directory}/{file}")


def _k3s_arguments_in(host: Host, path: str) -> Iterator[str]:
    """Kubelet's arguments in one file: each key has one argument as text, or a list of them."""
    settings = _mapping(host.text(path)) or {}
    for key in ("kubelet-arg", "kubelet-arg+"):
        given = settings.get(key) or ()
        values = (given,) if isinstance(given, str) else given
        for value in values:
            yield f"--{value}"


def _values(arguments: Sequence[str], flag: str) -> Iterator[str]:
    """The values of a flag, as `--flag=value` or in the argument that follows."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if equals:
            yield value
        else:
            yield next(iter(arguments[position + 1 :]), "")
