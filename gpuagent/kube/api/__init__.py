"""Raw JSON calls to the API server: connections, large lists a page at a time, errors in words for people. No
exception of the library leaves it.
"""
