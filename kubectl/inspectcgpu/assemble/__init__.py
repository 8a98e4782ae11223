"""How the report is made of what was read.

- `cluster_facts`: everything that was read, as of one moment.
- `cluster_report`: the nodes with their pods, and the pods that wait.
- `node_report`: one node: its GPUs, and how much of each is allocated.
- `pod_report`: one pod: its GPUs, or why it has none.
"""
