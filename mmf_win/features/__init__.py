"""Region features: LMDBs, their records, and a builder that creates an LMDB from feature files."""
