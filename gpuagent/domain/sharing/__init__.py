"""How a GPU is divided, and what a container receives: modes and what each sells and promises, units, grants, and
which isolation driver serves a mode. It knows neither a node's state nor kubelet's calls.
"""
