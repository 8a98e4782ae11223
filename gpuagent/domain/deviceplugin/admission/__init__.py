"""Which container a call is for. Kubelet admits one pod at a time, and its calls carry device ids and no pod.

- `requesting_container`: finds the container, and queries kubelet only if the answer depends on it.
- `requester`: the container of a call, or what is known of one that the agent cannot name.
- `fitting_containers`: the containers that fit a call by the agent's own record.
- `kubelet_listing`: which of them kubelet admits, by its list of pods and their devices.
- `admission_tracker`: the record of kubelet's calls, with the pod in admission and those that were refused or deleted.
- `recent_allocations`: the answered Allocates that kubelet's allocations, as last read, may not show yet.
"""
