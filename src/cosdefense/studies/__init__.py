"""Runs that belong together: the paper and the arena."""
