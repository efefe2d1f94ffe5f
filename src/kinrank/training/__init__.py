"""Learning a re-ranker: the only room with torch."""
