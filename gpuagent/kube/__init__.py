"""Edge to the Kubernetes API server: the only package that imports ``kubernetes``.

It translates and transports; it decides nothing. Importing this package is cheap: the library (0.2 to 0.5 s, 30 MiB)
is imported by the first call, in the thread that makes it.
"""

import sys

# The library loads this package wherever it is installed, as it is beside the tools of development, and with it
# grammars: a second of processor time and 12 MiB.
sys.modules.setdefault("kubernetes_validate", None)  # type: ignore[arg-type]
