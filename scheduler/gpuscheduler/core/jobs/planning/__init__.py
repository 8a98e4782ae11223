"""When a job is planned, where its pods go, and what holds their GPUs until they are bound.

- `planning`: when a job is planned, and what becomes of its plan when kube-scheduler does not accept a place in it.
- `placement_search`: nodes and GPUs for all pods that start together, and what the others lack.
- `start_plans`: holds the GPUs of plans, and gives them back.
- `named_nodes`: what kube-scheduler's call about a pod says about nodes.
- `nominations`: has kube-scheduler try pods again, on their planned nodes.
- `replanning`: whether jobs that wait are planned again.
"""
