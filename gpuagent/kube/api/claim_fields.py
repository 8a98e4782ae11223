"""The fields of a ResourceClaim that the agent reads: a claim may have 1.5 MiB, and nodes prepare a hundred at once."""

_OF_METADATA = {"metadata", "namespace", "name", "uid"}
_OF_REQUESTS = {"spec", "devices", "requests", "name", "exactly", "firstAvailable", "deviceClassName", "capacity"}
_OF_CONFIG = {"config", "opaque", "driver"}
_OF_ALLOCATION = {"status", "allocation", "results", "request", "pool", "device", "shareID", "adminAccess"}
_OF_AMOUNTS = {"consumedCapacity", "memory", "cores", "sharers"}
_OF_TOLERATIONS = {"tolerations", "key", "operator", "value", "effect"}
_OF_CONSUMERS = {"reservedFor", "resource"}

_OF_STATUS = _OF_ALLOCATION | _OF_AMOUNTS | _OF_TOLERATIONS | _OF_CONSUMERS
CLAIM_FIELDS = frozenset(_OF_METADATA | _OF_REQUESTS | _OF_CONFIG | _OF_STATUS)
"""Names of the fields, at any depth."""
