"""Where the pods of a job go: nodes and GPUs for all of them, or for none.

- `plan`: tries ways to place them, the best first.
- `groups`: pods that may have each other's places.
- `rooms`: how many pods of a group each node takes.
- `search`, `one_by_one`: look for places when simple ways find none.
- `contents`: what is free on nodes while pods are placed there.
- `trial`: places that are tried, on copies of the nodes.
- `shortage`: what would have to change for pods without a place.
"""
