"""A change of the host: its plan and steps, its journal, one at a time."""
