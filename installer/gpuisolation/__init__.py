"""The installer of a node's isolation layer: checks, installs, sets, upgrades and removes it. Works below any root."""
