"""The edge to the API server on one event loop, and the only importer of aiohttp.

It follows nodes, pods and ConfigMaps, and writes Bindings, patches and Events. It translates and decides nothing.
"""
