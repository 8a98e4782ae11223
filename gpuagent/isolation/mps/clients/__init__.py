"""Programs that use a GPU through MPS. `client_state` is what is known of those of one daemon, and whether its server
takes new ones; `drain` says which ones are ended before kubelet kills them. Both are pure, and `client_watch` acts on
them. `unseen` finds containers that began while neither agent nor daemon was there, which `unseen_starts` looks for.
"""
