"""Pods that are in no job.

- `single_pods`: the node and GPUs of each, or why it waits.
- `ahead`, `pauses`: which pods are decided before kube-scheduler asks about them.
- `preemption`, `victims`: pods of lower priority that have to go, and what they free.
- `scores`: which nodes suit a pod without GPUs.
- `placeholders`: pods that have a cluster autoscaler add a node.
- `fragmentation`: enough is free in all, and no GPU has enough.
"""
