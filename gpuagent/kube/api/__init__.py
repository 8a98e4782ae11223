"""Calls to the API server: requests, pages of lists, errors in words for people."""
