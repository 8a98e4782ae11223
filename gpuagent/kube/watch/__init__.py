"""Follows the node and its pods as the API server has them: list, watch, and list again with growing pauses. It
keeps of each pod only what `pods.pod.kept` returns.
"""
