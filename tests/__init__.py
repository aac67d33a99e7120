"""Tests of mmfw, a folder for each room of the package; ``worlds`` builds what they need."""
