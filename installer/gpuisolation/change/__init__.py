"""A change of the host, one at a time: to install, upgrade or remove the isolation layer.

`changer` decides what goes where, `change_plan` the order of the steps, `journal` writes them down before they are
taken, and `steps` takes them with `host/files`.
"""
