"""The settings: one table, and how the text of a value is read."""
