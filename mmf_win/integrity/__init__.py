"""Hashes of files, recorded and verified. Knows only files.

A folder whose files were once found intact has a :class:`~mmf_win.integrity.manifest.Manifest`::

    from mmf_win.integrity.manifest import Manifest
    from mmf_win.integrity.verify import verify

    manifest = Manifest.load(folder)     # None: nothing is known of these files
    for difference in verify(manifest):  # milliseconds, when nothing was touched since the last time
        print(difference)                # changed: detectron.lmdb/data.mdb (4096 instead of 33107968 bytes)
"""
