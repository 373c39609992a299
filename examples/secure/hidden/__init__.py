"""The digits app of examples/flower under secure aggregation: one more mod at the client, a helper at the server."""
