"""Faults that `put_back` puts into the product, by the two parts between which each of them shows."""
