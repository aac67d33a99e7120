"""What ``mmfw doctor`` finds out about the machine, the folders, MMF and the dataset."""
