"""The parts of `State`: GPUs, their health, the Node, pods, kubelet's allocations, device lists, Allocate calls,
isolation drivers, and claims. Each part is a frozen value, whose `taken(event)` returns the next value, or itself if
the event does not concern it. `step` applies the effects of an event on several parts.
"""
