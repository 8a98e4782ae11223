"""How property tests run: time is measured in `make bench`, and no test fails because the machine is busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("gpuagent", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpuagent")
