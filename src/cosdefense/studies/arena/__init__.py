"""Every defense against every attack."""
