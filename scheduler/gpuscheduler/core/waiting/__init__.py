"""Pods that wait although kube-scheduler does not ask about them, and nodes that they pass over.

- `cool_downs`: nodes that refused a pod are passed over for a while.
- `wake_ups`: pods that fit by now are tried again.
- `group_cycles`: pods of native pod groups, which are tried again too soon.
- `hidden_reasons`: Events about what kube-scheduler's own message does not say.
- `scheduler_names`: which pods are placed here, by the scheduler that they name.
- `pod_changes`: whether a pod that waits has become another one.
- `other_schedulers`: pods that wait for another scheduler, and are only shown.
"""
