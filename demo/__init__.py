"""`make demo`: the agent on a simulated node, explained step by step."""
