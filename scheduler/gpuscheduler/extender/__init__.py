"""The HTTP side: kube-scheduler's calls as its extender protocol has them, pages for people, and the server.

Only this package imports uvicorn. It translates and answers; the calls themselves are served by an `Extender`.
"""
