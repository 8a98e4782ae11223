"""docs/reference/labels-and-annotations.md: every name that the agent and the scheduler read or write on objects."""

from docsite.markdown import MADE, table
from gpuagent.domain.dra.unprepared import PREPARE_AGAIN_ANNOTATION
from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION
from gpuagent.domain.pods import annotations
from gpuagent.domain.scheduling.held_gpus import HELD_GPUS_ANNOTATION
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION
from gpuagent.domain.sharing import mode
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.usage.idle_policy import WHEN_IDLE_LABEL
from gpuscheduler.cluster_api.placeholder_pods import FOR_LABEL
from gpuscheduler.cluster_api.writes import NUDGED_ANNOTATION
from gpuscheduler.core.gangs import batch_job, job_set, kueue, leader_worker_set, pod_group_labels, ray_cluster
from gpuscheduler.core.gangs.gang_object import GANG_ANNOTATION, POD_GROUP_LABEL
from gpuscheduler.core.gangs.labels import WORKLOAD_LABELS
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, JOB_GATE
from gpuscheduler.core.policy.accepted_models import MODEL_LABEL

_ACCELERATOR = MODEL_LABEL.removesuffix("name")
_GANGS = "../gpuscheduler.md#jobs-of-other-projects"
_MODES = ", ".join(f"`{one}`" for one in Mode)

RESOURCES = (
    (mode.GPU_MEM, "containers, under `limits`", "GPU memory in [units](../modes.md#units)"),
    (mode.GPU_CORE, "containers, under `limits`", "percent of the compute of a GPU, mode `core_mem`"),
    (mode.GPU_WHOLE, "containers, under `limits`", "whole GPUs, mode `topology`"),
    (mode.GPU_COUNT, "capacity and allocatable of nodes", "number of GPUs, also of unhealthy ones; not for pods"),
    (mode.DRA_DRIVER, "ResourceSlices and claims", "name of the DRA driver, [mode `dra`](../dra.md)"),
)
LABELS = (
    (mode.MODE_LABEL, "node", "you", f"the [mode](../reference.md#modes): {_MODES}"),
    (mode.PLACEMENT_LABEL, "node", "you", "[placement](../modes.md#placement) of shares: `binpack`, `spread`"),
    (mode.DISABLE_LABEL, "node", "you", "`true`: cGPU runs containers without isolation, and the node reports it"),
    (f"{_ACCELERATOR}name", "node", "agent", "model of the first GPU, `NVIDIA-A100-SXM4-80GB`"),
    (f"{_ACCELERATOR}mem", "node", "agent", "total memory of the first GPU, `81920MiB`"),
    (f"{_ACCELERATOR}count", "node", "agent", "number of GPUs"),
    (
        WHEN_IDLE_LABEL,
        "namespace",
        "you",
        "with `--idle-policy`, what becomes of [idle pods](../operations.md#idle-pods): `evict-after-8h`",
    ),
    (mode.GPU_COUNT_LABEL, "pod", "you", "spread the memory of each container evenly over this number of GPUs"),
    (mode.JOB_LABEL, "pod", "you", "name of the pod's [job](../topology.md#jobs)"),
    (mode.REPLICAS_LABEL, "pod", "you", "number of pods of the job"),
    *(
        (name, "pod", author, f"read by gpuscheduler: [which pods start together]({_GANGS})")
        for name, author in (
            (job_set.NAME, "JobSet"),
            (job_set.REPLICATED_JOB, "JobSet"),
            (job_set.JOB_INDEX, "JobSet"),
            (job_set.UID, "JobSet"),
            (job_set.RESTARTS, "JobSet"),
            *((name, "Kubernetes, for the pods of a Job") for name in batch_job.NAME_LABELS + batch_job.UID_LABELS),
            (leader_worker_set.NAME, "LeaderWorkerSet"),
            (leader_worker_set.GROUP_INDEX, "LeaderWorkerSet"),
            (leader_worker_set.WORKER_INDEX, "LeaderWorkerSet"),
            (ray_cluster.GROUP, "KubeRay"),
            (ray_cluster.REPLICA, "KubeRay"),
            (POD_GROUP_LABEL, "you, for the coscheduling plugin"),
            (pod_group_labels.NAME, "you, for ACK's scheduler or Koordinator"),
            (pod_group_labels.MINIMUM, "you, for ACK's scheduler or Koordinator"),
            (kueue.GROUP, "you, Kueue"),
            *((name, "the controller of PyTorchJobs or RayClusters, or Spark") for name in WORKLOAD_LABELS),
        )
    ),
)
ANNOTATIONS = (
    (NODE_GPUS_ANNOTATION, "node", "agent", "[the GPUs that a scheduler may use](../annotations.md#gpuagentiogpus)"),
    (
        KNOWN_GPUS_ANNOTATION,
        "node",
        "agent",
        (
            "every GPU that the node has had, by UUID, with its PCI address and its most memory: "
            "[GPUMissing](../problems.md#gpumissing), [GPUMemoryShrunk](../problems.md#gpumemoryshrunk)"
        ),
    ),
    (
        HELD_GPUS_ANNOTATION,
        "node",
        "agent",
        "[what pods hold](../annotations.md#gpuagentioheld), where their annotations do not say it",
    ),
    (annotations.MEMORY_ANNOTATION, "pod", "scheduler, agent", 'units of memory by container and GPU, `{"0":{"1":4}}`'),
    (annotations.CORE_ANNOTATION, "pod", "scheduler, agent", "percent of compute, in the same form"),
    (annotations.V1_GPU, "pod", "scheduler, agent", "the GPU of the pod, a minor number"),
    (annotations.V1_UNITS, "pod", "scheduler, agent", "units of the pod on that GPU"),
    (annotations.V1_GPU_UNITS, "pod", "scheduler, agent", "units that the GPU has"),
    (
        annotations.V1_ASSUMED,
        "pod",
        "scheduler, agent",
        "when the scheduler decided, or the agent assigned; nanoseconds",
    ),
    (annotations.V1_ASSIGNED, "pod", "scheduler, agent", "`true` when the pod has the GPU"),
    (mode.GROUP_ANNOTATION, "pod", "scheduler, agent", "the whole GPUs of the pod, `1,3`"),
    (mode.VISIBLE_ANNOTATION, "pod", "scheduler, agent", "the GPUs that the pod's containers may see"),
    (annotations.DECIDED_ANNOTATION, "pod", "scheduler, agent", "UID of the pod that the other annotations are about"),
    (
        annotations.LIMIT_ANNOTATION,
        "pod",
        "you",
        "[another limit](../resize.md) of GPU memory for containers that run, `main=12`",
    ),
    (annotations.LIMIT_STATUS_ANNOTATION, "pod", "agent", "what became of that: `InForce: main=12`"),
    (annotations.MIRROR_ANNOTATION, "pod", "kubelet", "marks a static pod"),
    (PREPARE_AGAIN_ANNOTATION, "pod", "agent", "when the agent last let kubelet try the claims again; nanoseconds"),
    (NUDGED_ANNOTATION, "pod", "gpuscheduler", "when the scheduler last woke the pod; nanoseconds"),
    (COMMIT_ANNOTATION, "pod", "gpuscheduler", "the plan of a job, on one of its pods"),
    (FOR_LABEL, "placeholder", "gpuscheduler", "the pod that it is for: namespace and name; as a label, its UID"),
    (GANG_ANNOTATION, "pod", "you", f"`none`: the pod starts alone; `job`: [with its Job of a JobSet]({_GANGS})"),
    (leader_worker_set.SIZE, "pod", "LeaderWorkerSet", f"read by gpuscheduler: [number of pods]({_GANGS})"),
    (kueue.COUNT, "pod", "you, Kueue", f"read by gpuscheduler: [number of pods]({_GANGS})"),
)
OTHERS = (
    (JOB_GATE, "scheduling gate of pods", "gpuscheduler removes it when all pods of the job are there and fit"),
    (f"{mode.DRA_DRIVER}/...", "taints of devices", "[why new claims must not get a GPU](../dra.md#health)"),
)


def page() -> str:
    """The page."""
    head = ("name", "on", "written by", "value")
    return f"""# Labels, annotations and resources

{MADE}

## Resources

{table(("name", "in", "meaning"), ((f"`{name}`", *rest) for name, *rest in RESOURCES))}
## Labels

{table(head, ((f"`{name}`", *rest) for name, *rest in LABELS))}
## Annotations

[annotations.md](../annotations.md) says when the agent writes those of pods, and by which rule.
[schedulers.md](../schedulers.md#how-a-decision-is-read) says how it reads them.

{table(head, ((f"`{name}`", *rest) for name, *rest in ANNOTATIONS))}
## Others

{table(("name", "on", "meaning"), ((f"`{name}`", *rest) for name, *rest in OTHERS))}"""
