"""Protocols, data sets and the comparison of methods."""
