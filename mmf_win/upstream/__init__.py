"""MMF as a package on disk: its source, its version and its configuration keys. Imports no torch."""
