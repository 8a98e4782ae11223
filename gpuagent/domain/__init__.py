"""All decisions: modes, units, lists, placement, grants, problems. It is pure: values are frozen dataclasses, time
is an argument, and no module has I/O, threads, a clock or a log. It imports only data structures of the standard
library. The modules at its root are the spine: an event enters `step`, which returns the next `State`; kubelet's
calls read the `Snapshot` of it.
"""
