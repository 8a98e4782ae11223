"""Raw JSON calls to the API server: connections, large lists a page at a time, errors in words for people. No exception
of a library leaves it. Tokens and certificates are followed: kubelet replaces the files while a pod runs. The former
token serves while the new one cannot be read, and no request is sent on a connection of replaced certificates.
"""
