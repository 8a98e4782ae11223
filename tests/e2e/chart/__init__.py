"""The chart on the real cluster."""
