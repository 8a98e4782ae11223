"""The port of kube-scheduler's calls, as its extender protocol has them.

It bounds, translates and answers; the calls themselves are served by an `Extender`.
"""
