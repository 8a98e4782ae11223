"""What people read of a cluster's nodes, worked out in one place: the summary of a node and its problems.

The scheduler's page and `kubectl inspect cgpu` show it. Both read the Node object and ask no agent, so the agent writes
its problems, each with its severity, into the node condition `GPUAgentReady`.
"""
