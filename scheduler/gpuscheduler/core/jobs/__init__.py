"""Jobs start whole or not at all.

- `jobs`: the events and calls about jobs. All pods of a job wait in bind for each other.
- `job`: one job, and what it waits for.
- `start_plan`: the plan by which a job starts, and its stages.
- `rejected_nodes`: nodes that kube-scheduler does not accept for pods of a job.
- `pods`: the pods of a job, those that have ended included, and with which of them it has started.
- `planning`: when a job is planned, and what its plan holds.
- `places`: nodes and GPUs for all pods of a job.
- `turns`: which pods kube-scheduler has come to, so that they may be planned.
- `attached`: pods that it comes to only when others of their job are bound.
- `priority`: which job comes first: nodes are kept for it, and pods of lower priority evicted.
- `work_shares`: how much work the plans of each namespace may take in calls.
- `commit`: the plan as text, written before the first pod is bound.
- `why_waiting`: why a job whose pods are all there waits.
- `recovery`: begins where a former run of the scheduler has ended.
- `due_jobs`, `agenda`: what is due for jobs, and which of those that wait is planned next.
"""
