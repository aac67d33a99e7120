"""Region features: LMDBs of features, their records, and a builder that makes one from files."""
