"""Hashes of files, recorded and verified. Knows only files.

A folder whose files were once found intact has a :class:`~mmf_win.integrity.manifest.Manifest`::

    from mmf_win.integrity.manifest import Manifest
    from mmf_win.integrity.verify import find_damage

    manifest = Manifest.load(folder)     # None: nothing is known of these files
    for difference in find_damage(manifest):  # milliseconds, when nothing was touched since then
        print(difference)  # changed: detectron.lmdb/data.mdb (4096 instead of 33107968 bytes)
"""
