"""How a GPU is divided, and what a container receives. It has the modes with their resources and promises, units,
grants, and which isolation driver serves a mode. It depends neither on a node's state nor on kubelet's calls.
"""
