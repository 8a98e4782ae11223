"""How many examples property tests take: as many as they say, or with HYPOTHESIS_PROFILE=fuzz a hundred thousand."""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a busy machine is no fault of the code
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=100_000,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # nothing is kept between runs
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
