"""What a scheduler decided for a pod, and whether it is valid."""
