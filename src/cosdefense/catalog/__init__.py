"""Every part by name, the presets, checks of options, and the catalog page."""
