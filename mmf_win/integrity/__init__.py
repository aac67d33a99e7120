"""Recording and verification of file hashes. Independent of the meaning of the files.

A folder with verified files has a :class:`~mmf_win.integrity.manifest.Manifest`::

    from mmf_win.integrity.manifest import Manifest
    from mmf_win.integrity.verify import find_damage

    manifest = Manifest.load(folder)  # None: no hashes are recorded for this folder
    for problem in find_damage(manifest):  # takes milliseconds if no file was touched since the last check
        print(problem)  # changed: detectron.lmdb/data.mdb (4096 instead of 33107968 bytes)
"""
