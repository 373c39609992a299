"""Experiments as files, runs as folders, many runs at once."""
