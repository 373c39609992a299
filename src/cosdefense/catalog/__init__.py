"""Every part by name: build it from a table, describe it as one, list what there is."""
