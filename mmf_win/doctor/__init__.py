"""The checks of ``mmfw doctor``: machine, folders, MMF and dataset."""
