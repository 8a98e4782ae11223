"""Defragmentation: a few pods are moved so that a pod gets room that is free in all, and on no GPU.

- `mobility`: which pods may be moved, by what they say.
- `budgets`: what PodDisruptionBudgets allow.
- `surroundings`, `candidates`, `acceptance`: the cluster, and which of its nodes and pods come into question.
- `planner`, `leavers`, `new_places`: the fewest pods that have to leave, and where each fits afterwards.
- `move_plan`: the plan.
"""
