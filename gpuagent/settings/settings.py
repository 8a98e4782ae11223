"""Settings: one table; a flag beats the environment, which beats the file, which beats the default."""

import argparse
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpuagent.domain.gpus.health import APPLICATION_XIDS
from gpuagent.domain.policy import Policy
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.mps_client import CONTROL, OWN_DIRECTORY
from gpuagent.isolation.drivers import SETTINGS as ISOLATION_SETTINGS
from gpuagent.isolation.interface import Options
from gpuagent.settings import values


class ConfigError(Exception):
    """A setting that an operator must fix; the agent does not start."""


def _setting(
    default: Any,  # noqa: ANN401
    parse: Callable[[str], Any],
    text: str,
    *,
    metavar: str = "",
    env: str = "",
) -> Any:  # noqa: ANN401 (a field of any type)
    return field(default=default, metadata={"parse": parse, "help": text, "metavar": metavar, "env": env})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting of `gpuagent run`. Field `x_y` is flag `--x-y`, environment `GPUAGENT_X_Y`, file key `x-y`."""

    node_name: str = _setting(
        "", str, "name of this node; required unless --mode forces a mode", metavar="NAME", env="NODE_NAME"
    )
    kubeconfig: Path | None = _setting(
        None, values.path, "kubeconfig file for the API server (default: the pod's service account)"
    )
    kubelet_dir: Path = _setting(
        Path("/var/lib/kubelet"), values.path, "kubelet's directory: device-plugins and pod-resources are below it"
    )
    state_dir: Path = _setting(
        Path("/var/lib/gpuagent"), values.path, "directory in which the agent stores the last mode in force"
    )
    fence_file: Path | None = _setting(
        Path("/etc/nvidia-device-plugin/unhealthyDevices.json"),
        values.path_or_off,
        "file in which an operator names GPUs that must not be used; off for none",
    )
    simulate: str = _setting("", str, "use a simulated box instead of the NVIDIA driver", metavar="BOX")
    mode: Mode | None = _setting(
        None, values.mode, "force a mode whatever the node label says; needs no API server", metavar="MODE"
    )
    memory_unit: MemoryUnit = _setting(
        MemoryUnit(), MemoryUnit.parse, "size of one unit of aliyun.com/gpu-mem: GiB, 2GiB, 256MiB", metavar="UNIT"
    )
    max_pods_per_gpu: int = _setting(20, values.count, "most pods that may share one GPU", metavar="N")
    isolation: str = _setting(
        "auto",
        values.one_of(*ISOLATION_SETTINGS),
        f"isolation driver: {', '.join(ISOLATION_SETTINGS)} (auto: cGPU where it is installed, else MPS)",
        metavar="DRIVER",
    )
    cgpu_percent_per_weight: int = _setting(
        5, values.count, "percent of a GPU's compute that equal one unit of cGPU's weight", metavar="PERCENT"
    )
    mps_control: str = _setting(CONTROL, str, "name or path of MPS's control program", metavar="PROGRAM")
    mps_pipe_dir: Path = _setting(OWN_DIRECTORY, values.path, "pipe directory of an MPS daemon that the agent starts")
    mps_start: bool = _setting(
        True,
        values.is_on,
        "start an MPS daemon where none is found; false: another program runs it",
        metavar="BOOL",
    )
    mps_exclusive: bool = _setting(
        True, values.is_on, "set GPUs that MPS serves to compute mode EXCLUSIVE_PROCESS", metavar="BOOL"
    )
    core_step: int = _setting(
        5, values.step, "requests for compute are multiples of this many percent", metavar="PERCENT"
    )
    core_mem_both: bool = _setting(
        True,
        values.is_on,
        "in core_mem, require a container to request both memory and compute, or neither",
        metavar="BOOL",
    )
    settle: float = _setting(
        60,
        values.seconds,
        "seconds a GPU must stay healthy after a fault before it is advertised again",
        metavar="SECONDS",
    )
    ignore_xids: frozenset[int] = _setting(
        frozenset(),
        values.xids,
        "more XIDs that make no GPU unhealthy where the driver reports no recovery action: 63,94",
        metavar="LIST",
    )
    fatal_xids: frozenset[int] = _setting(
        frozenset(),
        values.xids,
        "XIDs that make a GPU unhealthy there although they are harmless by default: 31",
        metavar="LIST",
    )
    decided_gpu_full: str = _setting(
        "refuse",
        values.one_of("refuse", "choose"),
        "what to do with a share if the GPU that a scheduler chose is full or gone: refuse it, or choose another GPU",
        metavar="WHAT",
    )
    trust_gpu_visible: bool = _setting(
        False,
        values.is_on,
        "show pods the GPUs beyond their own that annotation gpu-visible names; only where a scheduler writes it",
        metavar="BOOL",
    )
    clean_failed_pods: bool = _setting(
        False,
        values.is_on,
        "delete pods that kubelet failed because devices were missing, so that their controllers replace them",
        metavar="BOOL",
    )
    startup_taint: str = _setting(
        "", values.taint_key, "remove the node's taint of this key when the node shows its amounts", metavar="KEY"
    )
    visible_devices: str = _setting(
        "uuid",
        values.one_of("uuid", "index"),
        "what NVIDIA_VISIBLE_DEVICES names GPUs by: uuid or index",
        metavar="WHAT",
    )
    allow_unisolated: bool = _setting(
        False, values.is_on, "TRIALS ONLY: advertise cgpu, core_mem and mps without an isolation layer", metavar="BOOL"
    )
    exclusive_resource: str | None = _setting(
        None,
        values.resource,
        "serve mode default under this resource, such as nvidia.com/gpu (default: leave it to NVIDIA's plugin)",
        metavar="NAME",
    )
    device_strategy: DeviceStrategy = _setting(
        DeviceStrategy.DEVICE_NODES,
        lambda text: DeviceStrategy(values.one_of(*DeviceStrategy)(text)),
        "how containers get access to a GPU: device-nodes or cdi",
        metavar="HOW",
    )
    annotate_pods: bool = _setting(
        True,
        values.is_on,
        "annotate pods that no scheduler annotated, so that schedulers and inspect tools count them",
        metavar="BOOL",
    )
    http_address: tuple[str, int] | None = _setting(
        ("", 9445),
        values.address,
        "address of /metrics, /healthz, /readyz, /status and /topology; off for none",
        metavar="HOST:PORT",
    )
    compat_metrics: bool = _setting(
        False, values.is_on, "also export the three metrics nvidia_gpu_* that arena reads", metavar="BOOL"
    )
    log_format: str = _setting("text", values.one_of("text", "json"), "log lines for people (text) or machines (json)")
    log_level: str = _setting(
        "info",
        values.one_of("debug", "info", "warning", "error"),
        "lowest severity that is logged: debug, info, warning, error",
        metavar="LEVEL",
    )

    @property
    def policy(self) -> Policy:
        return Policy(
            resources=self.resources,
            unit=self.memory_unit,
            max_pods_per_gpu=self.max_pods_per_gpu,
            forced_mode=self.mode,
            allow_unisolated=self.allow_unisolated,
            isolation=self.isolation,
            index_for_uuid=self.visible_devices == "index",
            core_step=self.core_step,
            core_mem_both=self.core_mem_both,
            keep_decisions=self.decided_gpu_full == "refuse",
            trust_visible=self.trust_gpu_visible,
            fence_file=str(self.fence_file or ""),
            clean_failed_pods=self.clean_failed_pods,
            startup_taint=self.startup_taint,
            settle_s=self.settle,
            harmless_xids=(APPLICATION_XIDS | self.ignore_xids) - self.fatal_xids,
            annotate_pods=self.annotate_pods,
        )

    @property
    def isolation_options(self) -> Options:
        return Options(
            state_dir=self.state_dir,
            unit=self.memory_unit,
            percent_per_weight=self.cgpu_percent_per_weight,
            cdi=self.device_strategy is DeviceStrategy.CDI,
            mps_control=self.mps_control,
            mps_pipe_dir=self.mps_pipe_dir,
            mps_start=self.mps_start,
            mps_exclusive=self.mps_exclusive,
        )

    @property
    def resources(self) -> Resources:
        return Resources(self.exclusive_resource)

    @property
    def uses_api_server(self) -> bool:
        """Whether the agent uses the API server: always without a forced mode, else only where one is named."""
        named = self.kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in os.environ
        return self.mode is None or (named and bool(self.node_name))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` one flag a setting, and `--config`."""
    for setting in fields(Settings):
        flag, meta = f"--{setting_key(setting.name)}", setting.metadata
        env = " or ".join(name for name in (setting_variable(setting.name), meta["env"]) if name)
        isis_on = meta["parse"] is values.is_on
        parser.add_argument(
            flag,
            dest=setting.name,
            metavar=meta["metavar"] or setting.name.rpartition("_")[2].upper(),
            nargs="?" if isis_on else None,
            const="true" if isis_on else None,
            help=f"{meta['help']}{_default(setting.default)} [{env}]",
        )
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings by flag name [GPUAGENT_CONFIG]")


def _default(value: object) -> str:
    if not value:
        return ""
    shown = ":".join(map(str, value)) if isinstance(value, tuple) else value
    return f" (default: {shown})"


def setting_key(name: str) -> str:
    """The name of a field of `Settings` as a flag, without the dashes, and as a key of the file."""
    return name.replace("_", "-")


def setting_variable(name: str) -> str:
    """The environment variable of a field of `Settings`."""
    return f"GPUAGENT_{name.upper()}"


def load(flags: Mapping[str, str | None], env: Mapping[str, str]) -> Settings:
    """Settings from parsed flags (by field name, and ``config``), environment and file.

    Raises:
        ConfigError: names the setting, where it came from and what is wrong with it.
    """
    config = flags.get("config") or env.get("GPUAGENT_CONFIG")
    file = _read(Path(config)) if config else {}
    unknown = sorted(file.keys() - {setting_key(setting.name) for setting in fields(Settings)})
    if unknown:
        msg = f"{config}: unknown setting {', '.join(unknown)}"
        raise ConfigError(msg)
    ours = (name for name in env if name.startswith("GPUAGENT_") and not _OF_A_SERVICE.search(name))
    unknown = sorted(name for name in ours if name not in _KNOWN_ENV)
    if unknown:
        msg = f"environment: unknown setting {', '.join(unknown)}"
        raise ConfigError(msg)
    chosen = {}
    for setting in fields(Settings):
        sources = [
            (f"--{setting_key(setting.name)}", flags.get(setting.name)),
            (setting_variable(setting.name), env.get(setting_variable(setting.name))),
            (setting.metadata["env"], env.get(setting.metadata["env"])),
            (f"{config}: {setting_key(setting.name)}", file.get(setting_key(setting.name))),
        ]
        source, text = next(((s, t) for s, t in sources if t is not None), ("", None))
        if text is not None:
            try:
                chosen[setting.name] = setting.metadata["parse"](text)
            except ValueError as err:
                msg = f"{source}: {err}"
                raise ConfigError(msg) from err
    settings = Settings(**chosen)
    if not settings.node_name and settings.mode is None and not flags.get("dry_run"):
        msg = "--node-name (or NODE_NAME) is needed to read the node's label; or force a mode with --mode"
        raise ConfigError(msg)
    if twice := settings.ignore_xids & settings.fatal_xids:
        msg = f"--ignore-xids and --fatal-xids both name XID {min(twice)}: leave it in one of them"
        raise ConfigError(msg)
    return settings


_KNOWN_ENV = {setting_variable(setting.name) for setting in fields(Settings)} | {
    "GPUAGENT_CONFIG",
    "GPUAGENT_DRY_RUN",
    "GPUAGENT_URL",
}

_OF_A_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)$")
"""Variables that Kubernetes sets for Services whose names begin with gpuagent."""


def _read(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as err:
        msg = f"cannot read {path}: {err.strerror}"
        raise ConfigError(msg) from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        msg = f"{path} is not TOML: {err}"
        raise ConfigError(msg) from err
    for key, value in data.items():
        if not isinstance(value, (str, int, float, bool)):
            msg = f"{path}: {key} is neither a text nor a number nor true or false"
            raise ConfigError(msg)
    return {key: str(value) for key, value in data.items()}
