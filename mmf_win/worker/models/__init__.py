"""Models that MMF does not have, which it can train and use like its own."""
