"""Measurements of the agent as a process, against the stand-ins: `python -m bench`."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read when grpc is imported; its C core logs every disconnect
