"""Texts and tables for people: problems, the status page, the topology page, and notices to the pods on a GPU. The
package also warns where other programs would misread the node. It reads the state and changes nothing.
"""
