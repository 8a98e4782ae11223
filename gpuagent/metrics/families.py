"""Every metric there is: its name, labels and meaning. docs/reference/metrics.md is made from this table."""

from gpuagent.metrics.family import Family

GPU = ("UUID", "gpu")
CONTAINER = (*GPU, "namespace", "pod", "container")
ARENA = ("node_name", "namespace_name", "pod_name", "uuid", "minor_number", "allocate_mode")

# -- the agent and its node ----------------------------------------------------------------------------------------

BUILD = Family("gpuagent_build_info", "1; the agent's version.", ("version",))
DRIVER = Family(
    "gpuagent_driver_info",
    "1; the NVIDIA driver's version.",
    ("version",),
    more="Absent while the driver does not answer.",
)
READY = Family(
    "gpuagent_node_ready",
    "1 while the node condition GPUAgentReady is True: the node advertises what its mode promises.",
    more="`gpuagent_problems` names the problem.",
)
PROBLEMS = Family(
    "gpuagent_problems",
    "Current problems of the node, by reason and severity.",
    ("reason", "severity"),
    more="Reasons are those of [problems.md](../problems.md). Severity `blocking`: the node does not serve its mode. "
    "`warning`, or `info` for what is as it should be.",
)
MODE = Family("gpuagent_mode", "1 for the mode in force, 0 for the others.", ("mode",))
SWITCHING = Family("gpuagent_mode_switch_in_progress", "1 while a mode switch settles or waits for containers.")
WAITING = Family(
    "gpuagent_mode_switch_waiting_containers",
    "Containers of a former mode whose GPUs are not advertised until they end.",
)
ISOLATION = Family(
    "gpuagent_isolation_up",
    "1 while the isolation driver of the mode in force works, 0 while it does not.",
    ("driver",),
    more="Absent in modes that promise no isolation, and in mode `dra` without an isolation driver.",
)
LIMITS_REPAIRED = Family(
    "gpuagent_limits_repaired_total",
    "Memory limits of running pods that the agent has set again, by what was wrong.",
    ("why",),
    "counter",
    more="`missing`: there was none. `different`: there was another one. `resized`: the share has changed. "
    "`foreign`: a pod without a share had one. Limits of new containers do not count. Absent without driver `limits`; "
    "a series begins with the first repair.",
)
HEALTH_WATCH = Family(
    "gpuagent_health_watch_up",
    "1 while the agent can receive an XID of any GPU.",
    more="0 while the driver is missing.",
)
UNTIED_XIDS = Family(
    "gpuagent_untied_xids_total",
    "XIDs that the driver reported without a GPU of this node, so that no GPU was marked unhealthy for them.",
    ("xid",),
    "counter",
)
WATCH = Family(
    "gpuagent_watch_up",
    "1 while the agent follows these objects at the API server.",
    ("resource",),
    more="`nodes` or `pods`, in mode `dra` also `resourceslices`. Absent where the agent has no API server.",
)
API_REQUESTS = Family(
    "gpuagent_api_requests_total",
    "Requests to the API server, by verb and HTTP status.",
    ("verb", "code"),
    "counter",
    more="Code `none`: no answer. A watch counts once, when it is opened: its rate is that of reconnects.",
)
ATTRIBUTION = Family(
    "gpuagent_process_attribution_up",
    "1 while processes on GPUs can be joined to containers, 0 while it is not certain.",
    more="0 in a pod without `hostPID: true`, see [used memory](../metrics.md#used-memory). "
    "Absent where no GPU reports processes.",
)
METRICS_FAILURES = Family(
    "gpuagent_metrics_failures_total",
    "Parts of this page that could not be computed and were left out.",
    ("part",),
    "counter",
    more="`node`, `resources`, `gpus`, `containers`, `over_time` or `arena`. A bug: the agent's log has the details. "
    "A series begins with the first failure.",
)

# -- resources -----------------------------------------------------------------------------------------------------

REGISTERED = Family(
    "gpuagent_registered",
    "1 while kubelet follows the resource's device list.",
    ("resource",),
    more="Of `gpu.gpuagent.io`, in mode `dra`: while kubelet accepts the DRA driver.",
)
REGISTRATIONS = Family(
    "gpuagent_registrations_total", "Successful registrations with kubelet.", ("resource",), "counter"
)
DEVICES = Family(
    "gpuagent_devices",
    "Devices advertised to kubelet.",
    ("resource", "health"),
    more="Health `healthy` or `unhealthy`. A resource of another mode is 0, not absent. Of `gpu.gpuagent.io`: the "
    "devices of the ResourceSlice in mode `dra`, `unhealthy` with a taint.",
)
LIST_BYTES = Family(
    "gpuagent_device_list_bytes",
    "Encoded size of the device list; kubelet takes 4194304 bytes.",
    ("resource",),
)
RPC = Family(
    "gpuagent_rpc_duration_seconds",
    "Time to answer kubelet's calls, refusals included.",
    ("method", "resource"),
    "histogram",
)
REFUSALS = Family(
    "gpuagent_refusals_total",
    "Refused calls of kubelet, by reason.",
    ("method", "resource", "reason"),
    "counter",
    more="Reasons are those of [troubleshooting.md](../troubleshooting.md#refusals). "
    "A series begins with the first refusal.",
)

# -- GPUs ----------------------------------------------------------------------------------------------------------

GPU_INFO = Family(
    "gpuagent_gpu_info",
    "1; facts about a GPU.",
    (*GPU, "index", "model", "pci_bus_id"),
    more="`index` is NVML's, and may change when another GPU dies.",
)
HEALTHY = Family("gpuagent_gpu_healthy", "1 for a GPU that is healthy and not fenced.", GPU)
FENCED = Family("gpuagent_gpu_fenced", "1 for a GPU that the operator has fenced by file.", GPU)
LAST_XID = Family(
    "gpuagent_gpu_last_xid",
    "The last XID of a GPU since the agent started, also one without effect.",
    GPU,
    more="Absent before the first.",
)
LAST_XID_AT = Family("gpuagent_gpu_last_xid_timestamp_seconds", "Unix time of the GPU's last XID.", GPU)
XIDS = Family("gpuagent_gpu_xids_total", "XIDs of a GPU.", (*GPU, "xid"), "counter")
SAMPLE = Family(
    "gpuagent_gpu_sample_up",
    "1 while the driver reports what uses the GPU, 0 while it fails or hangs.",
    GPU,
    more="At 0 the last sample is shown for 30 s; then everything below that is *sampled* is absent.",
)
TOTAL = Family("gpuagent_gpu_memory_total_bytes", "Memory of the GPU.", GPU)
RESERVED = Family(
    "gpuagent_gpu_memory_reserved_bytes",
    "GPU memory that the driver and firmware reserve.",
    GPU,
    more="Absent where the driver does not report it (before 510, where it counts as used).",
)
USED = Family("gpuagent_gpu_memory_used_bytes", "Memory in use, the reserved part not counted.", GPU, more="Sampled.")
ALLOCATED = Family(
    "gpuagent_gpu_memory_allocated_bytes",
    "GPU memory that is allocated to containers.",
    GPU,
    more="A whole GPU counts with all its memory. Absent until kubelet's allocations were read, and where "
    "another device plugin allocated the GPU.",
)
UNATTRIBUTED = Family(
    "gpuagent_gpu_memory_unattributed_bytes",
    "GPU memory in use that belongs to no known container.",
    GPU,
    more="Sampled. The driver's own, the MPS server's, processes outside pods, and everything while "
    "`gpuagent_process_attribution_up` is 0.",
)
UNATTRIBUTED_PROCESSES = Family(
    "gpuagent_gpu_unattributed_processes",
    "Processes on the GPU that belong to no known container.",
    GPU,
    more="Sampled.",
)
BUSY = Family(
    "gpuagent_gpu_utilization_ratio",
    "Part of its time that the GPU works, 0 to 1.",
    GPU,
    more="Sampled. Absent in MIG mode.",
)
COMPUTE_ALLOCATED = Family(
    "gpuagent_gpu_compute_allocated_ratio",
    "Part of the GPU's compute that is allocated to containers, 0 to 1.",
    GPU,
    more="Absent where compute is not allocated by share (modes `share`, `cgpu`, `mps`).",
)
SHARERS = Family(
    "gpuagent_gpu_containers",
    "Containers to which the GPU or a part of it is allocated.",
    GPU,
    more="Absent until kubelet's allocations were read.",
)
FREE = Family(
    "gpuagent_gpu_memory_free_bytes",
    "GPU memory that one more pod may get of the GPU.",
    GPU,
    more="0 if it gets none, for example because the GPU is unhealthy, has no compute left, or has as many pods as may "
    "share it. 0 for all GPUs while `gpuagent_node_ready` is 0, for example because isolation is switched off. Of a "
    "GPU that is given whole, all of its memory or 0. Absent in modes `default` and `dra`, until kubelet's allocations "
    "were read, and for a free whole GPU of which the driver does not report the memory.",
)
WITHHELD = Family(
    "gpuagent_gpu_memory_withheld_bytes",
    "GPU memory that no container can request, because the limits of running pods were raised.",
    GPU,
    more="See [resize.md](../resize.md). Absent until kubelet's allocations were read.",
)
TEMPERATURE = Family("gpuagent_gpu_temperature_celsius", "Temperature of the chip.", GPU, more="Sampled.")
POWER = Family("gpuagent_gpu_power_watts", "Power that the board draws.", GPU, more="Sampled.")

# -- containers ------------------------------------------------------------------------------------------------------

CLAIM = Family(
    "gpuagent_container_claim_info",
    "1; the ResourceClaim with which a container uses a GPU, and the isolation driver that serves it.",
    (*CONTAINER, "claim", "isolation"),
    more="Mode `dra`. Several containers may use one claim, which the GPU's sums have once.",
)
MEMORY_LIMIT = Family(
    "gpuagent_container_gpu_memory_limit_bytes",
    "GPU memory that is allocated to the container.",
    CONTAINER,
    more="With isolation, its units' part of the GPU's memory; without, the requested amount; of a whole GPU, all. "
    "Of a [resized](../resize.md) container, the limit in force.",
)
MEMORY_USED = Family(
    "gpuagent_container_gpu_memory_used_bytes",
    "GPU memory that the container's processes use.",
    CONTAINER,
    more="Sampled. Also of containers without an allocation. "
    "Absent where unknown, see [used memory](../metrics.md#used-memory).",
)
COMPUTE_LIMIT = Family(
    "gpuagent_container_gpu_compute_limit_ratio",
    "Part of the GPU's compute that is allocated to the container, 0 to 1.",
    CONTAINER,
    more="Absent where the container requested no compute.",
)
COMPUTE_USED = Family(
    "gpuagent_container_gpu_compute_used_ratio",
    "Part of its time that the GPU works for the container, 0 to 1.",
    CONTAINER,
    more="Sampled. Absent where the driver does not report it for each process: in MIG mode, and for MPS clients where "
    "it reports only their server.",
)

# -- containers over time -----------------------------------------------------------------------------------------

ALLOCATED_SECONDS = Family(
    "gpuagent_container_gpu_allocated_seconds_total",
    "Time for which the container held the GPU or a part of it.",
    CONTAINER,
    "counter",
    more="See [use over time](../metrics.md#use-over-time) for all of these.",
)
USED_SECONDS = Family(
    "gpuagent_container_gpu_used_seconds_total",
    "Time in which a process of the container had memory of the GPU.",
    CONTAINER,
    "counter",
)
UNUSED_SECONDS = Family(
    "gpuagent_container_gpu_unused_seconds_total",
    "Time for which the container held the GPU while no process of it had memory of the GPU.",
    CONTAINER,
    "counter",
    more="Time in which used memory is not known counts neither here nor in the family before. Absent, as that one, "
    "until it is known for the first time.",
)
BUSY_SECONDS = Family(
    "gpuagent_container_gpu_busy_seconds_total",
    "Time in which the GPU worked for the container: an hour at 50 % is half an hour.",
    CONTAINER,
    "counter",
)
IDLE_SECONDS = Family(
    "gpuagent_container_gpu_idle_seconds_total",
    "Time for which the container held the GPU while the GPU did not work for it at all.",
    CONTAINER,
    "counter",
    more="Time in which the driver does not say it does not count, here and in the family before. Absent, as that one, "
    "until the driver says it for the first time.",
)
ALLOCATED_BYTE_SECONDS = Family(
    "gpuagent_container_gpu_memory_allocated_byte_seconds_total",
    "GPU memory that was allocated to the container, times how long.",
    CONTAINER,
    "counter",
    more="Containers that use one ResourceClaim have equal parts of it here. 0 where another device plugin allocated "
    "the GPU.",
)
USED_BYTE_SECONDS = Family(
    "gpuagent_container_gpu_memory_used_byte_seconds_total",
    "GPU memory that the container's processes used, times how long.",
    CONTAINER,
    "counter",
)
UNUSED_BYTE_SECONDS = Family(
    "gpuagent_container_gpu_memory_unused_byte_seconds_total",
    "GPU memory that was allocated to the container and that it did not use, times how long.",
    CONTAINER,
    "counter",
    more="Time in which used memory is not known does not count, here and in the family before. Absent, as that one, "
    "until it is known for the first time.",
)
PEAK_USED = Family(
    "gpuagent_container_gpu_memory_used_peak_bytes",
    "The most GPU memory that the pod's container was seen to use.",
    CONTAINER,
    more="A peak between two readings is not seen.",
)
IDLE_FOR = Family(
    "gpuagent_container_gpu_idle_duration_seconds",
    "For how long the GPU has not worked for the container; 0 while it works.",
    CONTAINER,
    more="From the agent's start on, or from the pod's. Absent where it is not known. It begins again after time in "
    "which it was not known.",
)

# -- namespaces over time --------------------------------------------------------------------------------------------

NAMESPACE_ALLOCATED_SECONDS = Family(
    "gpuagent_namespace_gpu_allocated_seconds_total",
    "Time for which containers of the namespace held a GPU or a part of it, added up.",
    ("namespace",),
    "counter",
    more="These sums go on when a container ends. See [use over time](../metrics.md#use-over-time) for all of these.",
)
NAMESPACE_USED_SECONDS = Family(
    "gpuagent_namespace_gpu_used_seconds_total",
    "That time, as far as a process of the container had memory of the GPU.",
    ("namespace",),
    "counter",
)
NAMESPACE_UNUSED_SECONDS = Family(
    "gpuagent_namespace_gpu_unused_seconds_total",
    "That time, as far as no process of the container had memory of the GPU.",
    ("namespace",),
    "counter",
    more="Absent, as the family before, until it is known for the first time.",
)
NAMESPACE_BUSY_SECONDS = Family(
    "gpuagent_namespace_gpu_busy_seconds_total",
    "That time, as far as the GPU worked for the container: an hour at 50 % is half an hour.",
    ("namespace",),
    "counter",
)
NAMESPACE_IDLE_SECONDS = Family(
    "gpuagent_namespace_gpu_idle_seconds_total",
    "That time, as far as the GPU did not work for the container at all.",
    ("namespace",),
    "counter",
    more="Absent, as the family before, until the driver says it for the first time.",
)
NAMESPACE_ALLOCATED_BYTE_SECONDS = Family(
    "gpuagent_namespace_gpu_memory_allocated_byte_seconds_total",
    "GPU memory that was allocated to containers of the namespace, times how long.",
    ("namespace",),
    "counter",
)
NAMESPACE_USED_BYTE_SECONDS = Family(
    "gpuagent_namespace_gpu_memory_used_byte_seconds_total",
    "GPU memory that processes of these containers used, times how long.",
    ("namespace",),
    "counter",
)
NAMESPACE_UNUSED_BYTE_SECONDS = Family(
    "gpuagent_namespace_gpu_memory_unused_byte_seconds_total",
    "GPU memory that was allocated to these containers and that they did not use, times how long.",
    ("namespace",),
    "counter",
    more="Absent, as the family before, until used memory is known for the first time.",
)

# -- for arena -------------------------------------------------------------------------------------------------------

ARENA_DUTY = Family("nvidia_gpu_duty_cycle", "Percent of its time that the GPU works.", ARENA)
ARENA_USED = Family(
    "nvidia_gpu_memory_used_bytes",
    "GPU memory in use: by the pod where allocate_mode is share, else by all.",
    ARENA,
)
ARENA_TOTAL = Family("nvidia_gpu_memory_total_bytes", "Memory of the GPU.", ARENA)

CHAPTERS: dict[str, tuple[Family, ...]] = {
    "Agent and node": (
        *(BUILD, DRIVER, READY, PROBLEMS, MODE, SWITCHING, WAITING, ISOLATION, HEALTH_WATCH, UNTIED_XIDS, WATCH),
        *(LIMITS_REPAIRED, API_REQUESTS, ATTRIBUTION, METRICS_FAILURES),
    ),
    "Resources": (REGISTERED, REGISTRATIONS, DEVICES, LIST_BYTES, RPC, REFUSALS),
    "GPUs": (
        *(GPU_INFO, HEALTHY, FENCED, LAST_XID, LAST_XID_AT, XIDS, SAMPLE),
        *(TOTAL, RESERVED, USED, ALLOCATED, FREE, UNATTRIBUTED, UNATTRIBUTED_PROCESSES),
        *(BUSY, COMPUTE_ALLOCATED, SHARERS, WITHHELD, TEMPERATURE, POWER),
    ),
    "Containers": (CLAIM, MEMORY_LIMIT, MEMORY_USED, COMPUTE_LIMIT, COMPUTE_USED),
    "Containers over time": (
        *(ALLOCATED_SECONDS, USED_SECONDS, UNUSED_SECONDS, BUSY_SECONDS, IDLE_SECONDS),
        *(ALLOCATED_BYTE_SECONDS, USED_BYTE_SECONDS, UNUSED_BYTE_SECONDS),
        *(PEAK_USED, IDLE_FOR),
    ),
    "Namespaces over time": (
        *(NAMESPACE_ALLOCATED_SECONDS, NAMESPACE_USED_SECONDS, NAMESPACE_UNUSED_SECONDS),
        *(NAMESPACE_BUSY_SECONDS, NAMESPACE_IDLE_SECONDS),
        *(NAMESPACE_ALLOCATED_BYTE_SECONDS, NAMESPACE_USED_BYTE_SECONDS, NAMESPACE_UNUSED_BYTE_SECONDS),
    ),
    "For arena": (ARENA_DUTY, ARENA_USED, ARENA_TOTAL),
}
