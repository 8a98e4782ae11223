"""What kube-scheduler checks for a pod on a node, besides its GPUs.

- `resources`: CPU, memory, the number of pods, and other resources of the node.
- `labels`, `selectors`: labels of pods and nodes, and what selects them.
- `node_site`, `node_rules`: labels and taints of a node, and which nodes a pod may be on.
- `affinity`, `spread`, `host_ports`: what a pod wants of the pods on the node, or in the node's zone.
- `pod_rules`: all rules of one pod, read once.
- `occupant`, `neighborhood`: a pod on a node to other pods, and all of them.
- `kept_off`: the domains that pods on nodes keep others out of.
- `checks`: what one rule says about nodes, while pods are placed.
- `admission`: which nodes are left for the pods of a plan, while they are placed.
- `tries`: how much work one call may do on these rules, and on the search for GPUs.
"""
