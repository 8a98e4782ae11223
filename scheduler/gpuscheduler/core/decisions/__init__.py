"""Decisions as annotations of pods.

- `decision_text`: the annotations of a decision, in every family that agents and tools read.
- `decided_use`: which GPUs a pod uses by its annotations, and how much of each.
"""
