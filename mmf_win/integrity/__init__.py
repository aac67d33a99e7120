"""Hashes of files, recorded and verified. Knows only files.

A folder of files that were once found intact has a :class:`Manifest` beside them::

    manifest = Manifest.load(folder)     # None: nothing is known of these files
    for difference in verify(manifest):  # milliseconds, when nothing was touched since the last time
        print(difference)                # changed: detectron.lmdb/data.mdb (4096 instead of 33107968 bytes)
"""

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.finding import Difference, Finding, Part, State, differences
from mmf_win.integrity.manifest import (
    FIRST_READING,
    SUMS,
    UNKNOWN,
    Basis,
    Check,
    Entry,
    Manifest,
    Source,
    last_source,
    manifest_files,
)
from mmf_win.integrity.verify import (
    LOCK,
    last_check,
    mark_intact,
    record,
    verify,
    write_manifest,
)

__all__ = [
    "FIRST_READING",
    "LOCK",
    "SUMS",
    "UNKNOWN",
    "Basis",
    "Check",
    "Difference",
    "Entry",
    "Finding",
    "Manifest",
    "Part",
    "Source",
    "State",
    "differences",
    "file_digest",
    "last_check",
    "last_source",
    "manifest_files",
    "mark_intact",
    "record",
    "verify",
    "write_manifest",
]
