"""Puts the parts together and runs them. `agent` makes every part, starts it and stops it. `loop` owns the state: it
takes one event after another, and hands each new state to `effects`. From there it goes to the threads that answer
calls (`publisher`), to the API server, into the state directory, and to the isolation drivers. `device_plugins` keeps
the sockets of the device-plugin API, and `dra_driver` those of Dynamic Resource Allocation. `reports` is what people
and probes see. Nothing is decided here that the core can decide.
"""
