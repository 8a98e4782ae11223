"""Measurements of the agent as a process: calls, memory, idle cost, start, scrapes."""
