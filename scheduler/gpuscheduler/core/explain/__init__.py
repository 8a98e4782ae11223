"""Why a pod waits, in one sentence. Pure: objects of the cluster in, a sentence out.

`kubectl inspect cgpu --why` uses it for any pod, and the scheduler for Events of pods with claims.

- `pod_reason`: where each pod enters. It says what comes first: a gate, a job, claims, GPUs in limits.
- `resource_name`: a resource in limits that no node has, and what was probably meant.
- `scheduler_name`: a scheduler that has not tried the pod, and the one that was probably meant.
- `share_reason`: GPUs in the limits of a pod, in the words of `reasons`.
- `limit_claims`: the claims that kube-scheduler makes for resources in limits.
- `claim_reason`: the claims of a pod, and how they fit together.
- `request_reason`: one request of a claim: what it wants, and what the best node has.
- `out_of_reach`: which GPUs it cannot have although others like them serve it.
- `device_check`, `placing`: how far a device comes for a request, and whether all requests fit on one node.
- `selection`, `expression`: selectors of devices, and the part of CEL that they are usually written in.
- `claim_waits`: which pods with claims the scheduler tells why they wait, and how often.
- `published`, `claim_facts`: what is kept of slices, claims, classes and pods.
- `words`: amounts, numbers of things, and what was probably meant.
"""
