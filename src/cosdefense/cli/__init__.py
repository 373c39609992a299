"""The commands, one file each."""

from .app import app, main

__all__ = ["app", "main"]
