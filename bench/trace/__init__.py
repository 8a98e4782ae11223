"""The scheduler's policies on an open trace, beside published ones."""
