"""mmfw: Facebook's MMF on the Hateful Memes challenge, on Windows and Linux."""

__version__ = "0.1.0"
