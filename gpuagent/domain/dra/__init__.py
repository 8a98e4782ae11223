"""The other front end: Dynamic Resource Allocation, where kubelet names the claim that it prepares. It may import the
rest of the core except `deviceplugin`, `status` and `reconcile`.

- `resource_slice`: what the node publishes, in the order in which the scheduler should take it.
- `device_attributes`: what claims can select devices by.
- `gpu_sets`: which sets of linked GPUs are devices too, and in which order.
- `device_taints`: which taints keep new claims off a GPU, and why.
- `device_health`: what kubelet shows in the status of the pods that have a device.
- `requests`: whether a claim names amounts that people can mean.
- `ledger`: whether a claim fits beside those that are prepared.
- `prepare`: what a claim's containers get, or why they get nothing.
- `unprepared`: which pods may wait for a preparation that failed.
- `refused`: the Event about a claim that was refused.
- `cdi_spec`: the same in the words of the Container Device Interface.
"""
