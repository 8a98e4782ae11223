"""Answers to kubelet's calls, put together from the state and what was allocated lately."""
