"""Tests of mmfw, a folder for each package; ``worlds`` builds what they need."""
