"""Which job comes first, and what that means for others.

- `precedence`: keeps nodes for the first jobs that wait, and says where pods may be evicted for a job.
- `overdue_turns`: when a job that has waited for too long keeps nodes, and when it pauses.
- `after_evictions`: where the pods of a job would fit if pods of lower priority had ended.
- `endings`: pods that end without an eviction.
- `evictions`, `joint_attempt`: have kube-scheduler evict pods for a job of which each pod fits alone.
"""
