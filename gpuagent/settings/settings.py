"""The settings of `gpuagent run`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuagent.domain.gpus.health_verdict import APPLICATION_XIDS
from gpuagent.domain.policy import Policy
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.limits_client import SOCKET
from gpuagent.host.mps_client import CONTROL, OWN_DIRECTORY
from gpuagent.isolation.drivers import SETTINGS as ISOLATION_SETTINGS
from gpuagent.isolation.interface import Options
from gpuagent.settings import values
from gpuagent.settings.table import ConfigError, Table, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting of `gpuagent run`."""

    node_name: str = setting(
        "", str, "name of this node; required unless --mode forces a mode", metavar="NAME", env="NODE_NAME"
    )
    kubeconfig: Path | None = setting(
        None, values.path, "kubeconfig file for the API server (default: the pod's service account)"
    )
    kubelet_dir: Path = setting(
        Path("/var/lib/kubelet"), values.path, "kubelet's directory: device-plugins and pod-resources are below it"
    )
    state_dir: Path = setting(
        Path("/var/lib/gpuagent"), values.path, "directory in which the agent stores the last mode in force"
    )
    cdi_dir: Path = setting(
        Path("/var/run/cdi"), values.path, "directory of CDI specifications, which the container runtime reads"
    )
    fence_file: Path | None = setting(
        Path("/etc/nvidia-device-plugin/unhealthyDevices.json"),
        values.path_or_off,
        "file in which an operator names GPUs that must not be used; off for none",
    )
    simulate: str = setting("", str, "use a simulated box instead of the NVIDIA driver", metavar="BOX")
    mode: Mode | None = setting(
        None, values.mode, "force a mode whatever the node label says; needs no API server", metavar="MODE"
    )
    memory_unit: MemoryUnit = setting(
        MemoryUnit(), MemoryUnit.parse, "size of one unit of aliyun.com/gpu-mem: GiB, 2GiB, 256MiB", metavar="UNIT"
    )
    max_pods_per_gpu: int = setting(20, values.count, "most pods that may share one GPU", metavar="N")
    isolation: str = setting(
        "auto",
        values.one_of(*ISOLATION_SETTINGS),
        f"isolation driver: {', '.join(ISOLATION_SETTINGS)} (auto: the first of cgpu, limits and mps that can serve)",
        metavar="DRIVER",
    )
    cgpu_percent_per_weight: int = setting(
        5, values.count, "percent of a GPU's compute that equal one unit of cGPU's weight", metavar="PERCENT"
    )
    mps_control: str = setting(CONTROL, str, "name or path of MPS's control program", metavar="PROGRAM")
    mps_pipe_dir: Path = setting(OWN_DIRECTORY, values.path, "pipe directory of an MPS daemon that the agent starts")
    mps_start: bool = setting(
        True,
        values.is_on,
        "start an MPS daemon where none is found; false: another program runs it",
        metavar="BOOL",
    )
    mps_exclusive: bool = setting(
        True, values.is_on, "set GPUs that MPS serves to compute mode EXCLUSIVE_PROCESS", metavar="BOOL"
    )
    limits_socket: Path = setting(SOCKET, values.path, "socket of the helper that sets memory limits")
    mps_wedge: float | None = setting(
        None,
        values.seconds_or_off,
        "seconds after which an MPS daemon of the agent's that hangs is ended under its clients; off: wait for them",
        metavar="SECONDS",
    )
    core_step: int = setting(
        5, values.step, "requests for compute are multiples of this many percent", metavar="PERCENT"
    )
    core_mem_both: bool = setting(
        True,
        values.is_on,
        "in core_mem, require a container to request both memory and compute, or neither",
        metavar="BOOL",
    )
    numa_of_shares: bool = setting(
        True,
        values.is_on,
        "report the NUMA node of each GPU to kubelet also for shares; false: only for whole GPUs",
        metavar="BOOL",
    )
    settle: float = setting(
        60,
        values.seconds,
        "seconds a GPU must stay healthy after a fault before it is advertised again",
        metavar="SECONDS",
    )
    ignore_xids: frozenset[int] = setting(
        frozenset(),
        values.xids,
        "more XIDs that make no GPU unhealthy where the driver reports no recovery action: 63,94",
        metavar="LIST",
    )
    fatal_xids: frozenset[int] = setting(
        frozenset(),
        values.xids,
        "XIDs that make a GPU unhealthy there although they are harmless by default: 31",
        metavar="LIST",
    )
    trust_gpu_visible: bool = setting(
        False,
        values.is_on,
        "show pods the GPUs beyond their own that annotation gpu-visible names; only where a scheduler writes it",
        metavar="BOOL",
    )
    startup_taint: str = setting(
        "", values.taint_key, "remove the node's taint of this key when the node shows its amounts", metavar="KEY"
    )
    visible_devices: str = setting(
        "uuid",
        values.one_of("uuid", "index"),
        "what NVIDIA_VISIBLE_DEVICES names GPUs by: uuid or index",
        metavar="WHAT",
    )
    allow_unisolated: bool = setting(
        False, values.is_on, "TRIALS ONLY: advertise cgpu, core_mem and mps without an isolation layer", metavar="BOOL"
    )
    exclusive_resource: str | None = setting(
        None,
        values.resource,
        "serve mode default under this resource, such as nvidia.com/gpu (default: leave it to NVIDIA's plugin)",
        metavar="NAME",
    )
    device_strategy: DeviceStrategy = setting(
        DeviceStrategy.DEVICE_NODES,
        lambda text: DeviceStrategy(values.one_of(*DeviceStrategy)(text)),
        "how containers get access to a GPU: device-nodes or cdi",
        metavar="HOW",
    )
    live_resize: bool = setting(
        False,
        values.is_on,
        "obey annotation gpuagent.io/gpu-mem-limit of running pods; only where an admission policy guards it",
        metavar="BOOL",
    )
    idle_policy: bool = setting(
        False,
        values.is_on,
        "report or evict pods whose GPUs are idle, where label gpuagent.io/when-idle of their namespace says so",
        metavar="BOOL",
    )
    annotate_pods: bool = setting(
        True,
        values.is_on,
        "annotate pods that no scheduler annotated, so that schedulers and inspect tools count them",
        metavar="BOOL",
    )
    evict_claims: bool = setting(
        False,
        values.is_on,
        "in mode dra, evict the pods of claims from a GPU that became unhealthy (taint effect NoExecute)",
        metavar="BOOL",
    )
    gpu_sets: bool = setting(
        False,
        values.is_on,
        "in mode dra, publish sets of 2, 4 and 8 linked GPUs as devices too, so that a claim can ask for one",
        metavar="BOOL",
    )
    http_address: tuple[str, int] | None = setting(
        ("", 9445),
        values.address,
        "address of the page of the node, of /metrics, /healthz, /readyz, /status and /topology; off for none",
        metavar="HOST:PORT",
    )
    compat_metrics: bool = setting(
        False, values.is_on, "also export the three metrics nvidia_gpu_* that arena reads", metavar="BOOL"
    )
    log_format: str = setting("text", values.one_of("text", "json"), "log lines for people (text) or machines (json)")
    log_level: str = setting(
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
            numa_of_shares=self.numa_of_shares,
            trust_visible=self.trust_gpu_visible,
            fence_file=str(self.fence_file or ""),
            startup_taint=self.startup_taint,
            settle_s=self.settle,
            harmless_xids=(APPLICATION_XIDS | self.ignore_xids) - self.fatal_xids,
            live_resize=self.live_resize,
            idle_policy=self.idle_policy,
            annotate_pods=self.annotate_pods,
            evict_claims=self.evict_claims,
            gpu_sets=self.gpu_sets,
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
            mps_wedge_s=self.mps_wedge,
            limits_socket=self.limits_socket,
        )

    @property
    def resources(self) -> Resources:
        return Resources(self.exclusive_resource)

    @property
    def uses_api_server(self) -> bool:
        """Whether the agent uses the API server: always without a forced mode, else only where one is named."""
        named = self.kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in os.environ
        return self.mode is None or (named and bool(self.node_name))


GROUPS = {
    "node and API server": (
        *("node_name", "kubeconfig", "kubelet_dir", "state_dir", "cdi_dir", "fence_file", "startup_taint"),
        *("http_address", "simulate"),
    ),
    "modes and amounts": (
        *("mode", "memory_unit", "max_pods_per_gpu", "core_step", "core_mem_both", "exclusive_resource", "gpu_sets"),
        "numa_of_shares",
    ),
    "isolation": (
        *("isolation", "allow_unisolated", "cgpu_percent_per_weight", "mps_control", "mps_pipe_dir", "mps_start"),
        *("mps_exclusive", "mps_wedge", "limits_socket", "live_resize"),
    ),
    "health": ("settle", "ignore_xids", "fatal_xids", "evict_claims"),
    "pods and schedulers": ("trust_gpu_visible", "annotate_pods", "visible_devices", "device_strategy", "idle_policy"),
    "metrics and log": ("compat_metrics", "log_format", "log_level"),
}
"""Titles of the help, and the settings below each."""
TABLE = Table(Settings, "gpuagent", others=("GPUAGENT_DRY_RUN", "GPUAGENT_URL"), groups=GROUPS)


def load(flags: Mapping[str, str | None], env: Mapping[str, str]) -> Settings:
    """`Table.load`, and what must hold between the settings. Raises ConfigError."""
    settings = TABLE.load(flags, env)
    # A dry run reads no API server.
    must_read_node = not flags.get("dry_run")
    if must_read_node and not settings.node_name and settings.mode is None:
        raise ConfigError("--node-name (or NODE_NAME) is needed to read the node's label; or force a mode with --mode")
    if must_read_node and settings.mode is Mode.DRA and not settings.uses_api_server:
        raise ConfigError("mode dra needs an API server, which has the claims: set --node-name and --kubeconfig")
    twice = settings.ignore_xids & settings.fatal_xids
    if twice:
        raise ConfigError(f"--ignore-xids and --fatal-xids both name XID {min(twice)}: leave it in one of them")
    return settings
