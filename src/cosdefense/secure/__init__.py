"""Secure aggregation between two servers: updates are judged and added without being seen."""

from .defense import NoLengthProof, Secure

__all__ = ["NoLengthProof", "Secure"]
