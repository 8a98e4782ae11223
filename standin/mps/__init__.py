"""Stand-ins for NVIDIA's MPS programs."""
