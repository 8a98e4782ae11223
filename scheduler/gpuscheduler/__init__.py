"""The cluster's part: an extender of the stock kube-scheduler that places GPU shares, whole GPUs and jobs."""
