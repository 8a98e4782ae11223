"""Which pods belong together: one module for each source that says so, and one value, `Gang`, for the rest of the core.

- `gang`: the value.
- `sources`: which source counts where several apply.
- `labels`: this project's own labels.
- `job_set`, `leader_worker_set`, `ray_cluster`, `pod_group`, `native_pod_group`, `kueue`: what other projects write.
- `batch_job`: plain Jobs whose template has this project's labels.
- `gang_object`, `kinds`: what an object has to say where the pods alone do not say enough.
- `group_roles`: which pods of a LeaderWorkerSet's groups ask for GPUs.
- `gang_objects`: the objects that were seen, and the gangs of the pods that refer to them.
"""
