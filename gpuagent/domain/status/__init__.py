"""What people are shown: problems, the status page, the topology page, notices to the pods on a GPU, and where other
programs would misread the node. It reads the state and changes nothing.
"""
