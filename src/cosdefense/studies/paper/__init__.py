"""The CosDefense paper, reproduced."""
