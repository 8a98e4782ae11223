"""In place of kube-scheduler and the controllers of claims: allocates devices to claims, and binds their pods."""
