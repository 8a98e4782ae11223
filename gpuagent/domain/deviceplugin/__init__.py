"""One front end: kubelet's device-plugin API, whose calls carry device ids and no pod. It may import the rest of the
core except `status` and `reconcile`. It answers in six verbs.

- `advertise`: which device ids each resource advertises, and which of them are healthy.
- `admission`: which container a call is for, with a query to kubelet if the answer depends on it.
- `occupancy`: which devices are in use or reserved at the moment of a call.
- `assignment`: which device ids the container gets.
- `allocate`: what the container gets for the devices that kubelet picked, if they satisfy `allocation_rules`.
- `start_checks`: whether a container keeps the mode's promises when it starts.

`located` says which GPUs the device ids of a call are of, and `decided_gpus` which ones a scheduler chose for a
container. `mode_rules` has what holds in each call, `job` the GPUs of a pod's job. `counts` serves kubelets before
1.19, which do not ask which ids to take.

`resize` changes the memory limits of pods that run.
"""
