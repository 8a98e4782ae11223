"""Defragmentation: a few pods are moved for one that waits, because enough units are free but no GPU has them all.

- `mobility`: which pods may be moved, by what they say.
- `budgets`: what PodDisruptionBudgets allow.
- `surroundings`, `candidates`, `acceptance`: the cluster, and which of its nodes and pods come into question.
- `planner`, `leavers`, `new_places`: the fewest pods that have to leave, and where each fits afterwards.
- `move_plan`: the plan.
- `waits`: pods that wait, and whose turn it is.
- `check`: whether a plan still holds when it begins.
- `course`, `held_places`, `words`: a plan under way, the places that it keeps, and what people read about it.
- `defragmentation`: all of it together.
"""
