"""What kube-scheduler checks for a pod on a node, besides its GPUs.

- `resources`: CPU, memory, the number of pods, and other resources of the node.
"""
