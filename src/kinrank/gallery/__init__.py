"""Vectors kept and searched: one object over several stores."""
