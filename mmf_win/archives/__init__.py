"""Reading and verified extraction of archives, encrypted or not. Independent of the dataset.

Usable as a library::

    import hashlib
    from pathlib import Path
    from mmf_win.archives import open_archive

    archive = open_archive(Path("photos.zip"), ask=lambda: "secret")
    archive.check_password()  # before anything is written
    digest = hashlib.sha256()
    for done in archive.extract(lambda member: Path("out", member.name), digest=digest):
        print(done.name, done.size, done.sha256)
    print(digest.hexdigest())  # SHA-256 of the archive itself, computed in the same pass

The interface is the same for zip (plain, ZipCrypto, WinZip AES, Zip64), 7z, tar (plain or compressed) and
folders. Errors in an archive raise an :class:`~mmf_win.errors.ArchiveError` that names the file and the
member.
"""

from typing import TYPE_CHECKING

from mmf_win.archives.base import Archive, Digest, ExtractedFile, Member, PasswordCallback
from mmf_win.archives.detect import open_archive
from mmf_win.deprecation import deprecated_aliases

__all__ = ["Archive", "Digest", "ExtractedFile", "Member", "PasswordCallback", "open_archive"]

if not TYPE_CHECKING:
    __getattr__ = deprecated_aliases(__name__, {"Ask": "PasswordCallback", "Extracted": "ExtractedFile"})
