"""What schedulers write, one case at a time, on a real kubelet and API server: each ends with the audit."""
