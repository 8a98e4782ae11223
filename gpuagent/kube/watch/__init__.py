"""Follows the node and its pods as the API server has them."""
