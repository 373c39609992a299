"""Turns records into figures (PNG) and one self-contained HTML page that works offline."""

from .write import Report, write_report

__all__ = ["Report", "write_report"]
