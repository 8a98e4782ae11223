"""One front end: kubelet's device-plugin API, whose calls carry device ids and no pod. It may import the rest of the
core except `status` and `reconcile`. It answers in six verbs.

- `advertise`: which device ids each resource advertises, and which of them are healthy.
- `requesting_container`: which container a call is for, with a query to kubelet if the answer depends on it.
- `occupancy`: which devices are in use or reserved at the moment of a call, and the record of the calls before it.
- `assignment`: which device ids the container gets.
- `allocate`: what the container gets for the devices that kubelet picked, if they satisfy the rules of the mode.
- `start_checks`: whether a container keeps the mode's promises when it starts.

`mode_rules` has what holds in each call, `job` the GPUs of a pod's job. `counts` serves kubelets before 1.19, which do
not ask which ids to take.

`resizing` changes the memory limits of pods that run, a step at a time. `resize_request` has what can be granted,
`resize_units` which further units are free, and `resize_allocations` what kubelet has allocated to a pod.
"""
