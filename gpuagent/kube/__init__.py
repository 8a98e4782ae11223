"""Edge to the Kubernetes API server: the only package that imports ``kubernetes``.

It translates and transports; it decides nothing. Importing this package is cheap: the library (0.2 to 0.5 s, 30 MiB)
is imported by the first call, in the thread that makes it.
"""
