"""Pages and probes, on a port and in threads of their own, so that no reader delays a call of kube-scheduler.

The server is the agent's. The threads read values that the scheduler's loop has made for them, a few times a second at
most, and never the scheduler's state.
"""
