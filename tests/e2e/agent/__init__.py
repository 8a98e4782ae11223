"""The agent on the real cluster."""
