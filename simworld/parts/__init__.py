"""The parts of the simulated cluster: the product's own agents, and the stand-ins around them."""
