"""The MMF package on disk: source, version and configuration keys. Does not import torch."""
