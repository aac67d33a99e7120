"""Version of mmfw."""

__version__ = "0.1.0"
