"""The page and its HTTP API."""
