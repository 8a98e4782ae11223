"""Pods that wait although kube-scheduler does not ask about them, and nodes that they pass over.

- `node_rests`: nodes that refused a pod.
- `wake_ups`: pods that fit by now are tried again.
- `hidden_reasons`: Events about what kube-scheduler's own message does not say.
"""
