"""How a GPU is divided, and what a container receives."""
