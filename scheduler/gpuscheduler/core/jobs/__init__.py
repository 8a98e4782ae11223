"""Jobs start whole or not at all.

- `jobs`: the barrier that all pods of a job wait at, and why a job waits.
- `members`: the pods of a job, those that have ended included.
- `plan`: nodes and GPUs for all pods of a job, over links.
- `commit`: the plan as text, written before the first pod is bound.
"""
