"""The fields of a ResourceClaim that the agent reads: a claim may have 1.5 MiB, and nodes prepare a hundred at once."""

from gpuagent.domain.dra.claim_users import OF_LIMITS

_OF_METADATA = {"metadata", "namespace", "name", "uid", "annotations", OF_LIMITS}
_OF_REQUESTS = {"spec", "devices", "requests", "name", "exactly", "firstAvailable", "deviceClassName", "capacity"}
_OF_CONFIG = {"config", "opaque", "driver"}
_OF_ALLOCATION = {"status", "allocation", "results", "request", "pool", "device", "shareID", "adminAccess"}
_OF_AMOUNTS = {"consumedCapacity", "memory", "cores"}
_OF_CONSUMERS = {"reservedFor", "resource"}

CLAIM_FIELDS = frozenset(_OF_METADATA | _OF_REQUESTS | _OF_CONFIG | _OF_ALLOCATION | _OF_AMOUNTS | _OF_CONSUMERS)
"""Names of the fields, at any depth."""
