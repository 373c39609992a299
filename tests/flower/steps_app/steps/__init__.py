"""An app whose nodes do without torch: a process is started for every message, and importing it is most of its work."""
