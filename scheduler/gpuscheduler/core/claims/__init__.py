"""Pods with ResourceClaims for GPUs. kube-scheduler allots the devices; gpuscheduler only says which of its nodes suit
best, by the same policy as for other pods.

- `gpu_devices`: the GPUs that nodes publish.
- `gpu_claims`: what claims ask for, and what they have.
- `claim_nodes`: how well nodes suit the claims of a pod.
- `claim_jobs`: that jobs with claims do not start whole.
"""
