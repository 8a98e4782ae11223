"""Which pods belong together: one module for each source that says so, and one value, `Gang`, for the rest of the core.

- `gang`: the value.
- `labels`: this project's own labels.
"""
