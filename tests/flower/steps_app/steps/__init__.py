"""An app whose nodes do not import torch, which is most of the work of the process that handles a message."""
