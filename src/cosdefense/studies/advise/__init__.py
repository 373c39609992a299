"""Which defense fits a federation: a small tournament on its own model, data and clients."""
