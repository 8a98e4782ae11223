"""Which node and GPUs a pod gets. Pure: events and times in, answers and actions out."""
