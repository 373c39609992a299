"""Turns records into figures (PNG) and one self-contained HTML page that works offline."""

from .write import MissingReportExtra, Report, write_report

__all__ = ["MissingReportExtra", "Report", "write_report"]
