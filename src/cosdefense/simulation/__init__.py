"""Federated learning with some malicious clients, round by round."""
