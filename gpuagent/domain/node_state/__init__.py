"""The parts of `State`, each a frozen value in a module of its own."""
