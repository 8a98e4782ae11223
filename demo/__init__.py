"""`make demo`: the agent on a simulated node, explained step by step."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # the stand-in kubelet's library talks on stderr otherwise
