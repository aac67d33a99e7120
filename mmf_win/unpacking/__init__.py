"""Installation of an archive's files into a folder, all or none. Independent of the dataset."""
