"""Which node and GPUs a pod gets. Pure: events and times in, answers and actions out.

- `scheduling`: where every event and every call of kube-scheduler enters.
- `choose_gpus`, `links`: which GPUs of one node a request gets.
- `single_pods`: the node and GPUs of a pod that is in no job.
- `claims`: which nodes suit a pod with ResourceClaims.
- `ranking`, `node_arrays`: which nodes are the cheapest.
- `reasons`, `fragmentation`: why a node cannot take a pod, and what would help. Jobs have reasons of their own.
- `gangs`: which pods belong together.
- `jobs`: pods that start together.
- `reservations`: which GPUs are kept until a pod is bound.
- `bindings`: with which GPUs a pod is bound, and what the API server's answer means.
- `waiting`: pods that wait although kube-scheduler does not ask about them.
- `preemption`, `victims`: which pods to evict for a pod of higher priority.
- `defragment`: which pods to move so that a pod gets room on one GPU.
- `explain`: why a pod waits, in one sentence, also for pods with claims.
- `bound_pods`: what pods on nodes use, as was decided for them.
- `constraints`: what kube-scheduler checks for a pod besides its GPUs.
- `node_facts`, `pod_facts`, `gpu_request`: what is kept of a node and of a pod.
- `node_usage`, `cluster_usage`: what pods and reservations use.
- `calls`: the values that leave.
- `decisions`: decisions as annotations of pods.
"""
