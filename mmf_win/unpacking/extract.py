"""An archive unpacked to a folder, with a manifest of every file: all of it, or nothing that looks like it.

A tar is read once. While its members are written to a staging folder, they and the archive itself are hashed;
only then everything moves to its place, the manifest last. What an interrupted extraction has finished is not
written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mmf_win.archives import Ask, open_archive
from mmf_win.console import say
from mmf_win.errors import ArchiveError, DataError
from mmf_win.integrity import (
    Basis,
    Difference,
    Entry,
    Manifest,
    Source,
    manifest_files,
    mark_intact,
    verify,
    write_manifest,
)
from mmf_win.unpacking.reading import Choose, everything, hash_chosen, least_size, unpack_chosen
from mmf_win.unpacking.staging import flush_all, left_over, require_space, staging


def extract_verified(
    archive: Path,
    folder: Path,
    *,
    ask: Ask | None = None,
    choose: Choose = everything,
    expected_sha256: str | None = None,
    check: Callable[[Mapping[str, Entry]], None] | None = None,
    invalidates: Sequence[Path] = (),
    title: str = "Extracting",
) -> Manifest:
    """Unpack an archive to a folder and write the manifest of what came out of it.

    When the folder already holds what came out of this archive, it is verified, and only files that are wrong
    are unpacked again. Other files in the folder stay, except those in the way of a new one.

    While another process is at work in the folder, this one says so and waits.

    Args:
        archive: of any kind that :mod:`mmf_win.archives` reads, or a folder.
        folder: where to; made when it is not there.
        ask: answers with the password, if the archive needs one.
        choose: which members, and where to.
        expected_sha256: of the archive, as its publisher says, in hex.
        check: is given what will be in place, and may refuse it by an error of its own.
        invalidates: files that vouch for what was there before; taken away before anything moves.
        title: of the progress bar.

    Raises:
        ArchiveError: the archive is damaged, hostile, none at all, or not the expected one.
        PasswordError: the password is missing or wrong; nothing was written.
        ResourceError: there is not enough room; nothing was written.
        OSError: a file cannot be written; what was written is gone again.
    """
    if (manifest := _made_of(archive, folder, expected_sha256)) is not None:
        if wrong := verify(manifest):
            repair(manifest, archive, wrong, ask=ask, choose=choose, title=title)
        else:
            say(f"{folder}: this archive is unpacked here already")
        return manifest
    with open_archive(archive, ask, listed=False) as opened:
        opened.check_password()
        source = Source.of(archive)
        purpose = json.dumps([source.name, source.size, source.mtime_ns, expected_sha256])
        require_space(folder, least_size(opened, choose) - left_over(folder, purpose))
        with staging(folder, purpose=purpose, wait=True) as here:
            manifest = _made_of(archive, folder, expected_sha256)
            if manifest is not None and not verify(manifest):
                return manifest  # thanks to the process that was at work here until now
            files, sha256 = unpack_chosen(opened, choose, here, title)
            _require_published(archive, sha256, expected_sha256)
            if check is not None:
                check(files)
            # A check that is remembered must not outlive the bytes that it saw, not even in a power cut.
            flush_all([here.new / name for name in files])
            stale = [*manifest_files(folder), *invalidates]
            here.install([*((None, path) for path in stale), *_moves(here.new, folder)])
            return write_manifest(
                folder, files, _basis(sha256, expected_sha256), replace(source, sha256=sha256)
            )


def manifest_of(
    archive: Path,
    folder: Path,
    *,
    choose: Choose = everything,
    expected_sha256: str | None = None,
    title: str = "Reading",
) -> Manifest:
    """The manifest that ``folder`` would have if the archive had been unpacked there; it is not written.

    For files that came out of it by another hand: save the manifest, verify it, and repair what is wrong.

    Args:
        archive: a tar, plain or compressed; it is read once, and nothing is written.
        folder: where the files are.
        choose: which members, and where they are.
        expected_sha256: of the archive, as its publisher says, in hex.
        title: of the progress bar.

    Raises:
        ArchiveError: the archive is damaged, hostile, no tar, or not the expected one.
    """
    with open_archive(archive, listed=False) as opened:
        files, sha256 = hash_chosen(opened, choose, title)
        _require_published(archive, sha256, expected_sha256)
        return Manifest(folder, files, _basis(sha256, expected_sha256), Source.of(archive, sha256))


def repair(
    manifest: Manifest,
    archive: Path,
    wrong: Iterable[Difference],
    *,
    ask: Ask | None = None,
    choose: Choose = everything,
    title: str = "Mending",
) -> None:
    """Unpack again the files that are wrong, and only these.

    A member is believed when it has the hash that the manifest says, whatever else is wrong with the archive.
    All of them are put in place together, or none is. The archive is read no further than the last of them.

    Args:
        manifest: of the folder.
        archive: where the files came from.
        wrong: what :func:`~mmf_win.integrity.verify` found.
        ask: answers with the password, if the archive needs one.
        choose: as when they were extracted.
        title: of the progress bar.

    Raises:
        ArchiveError: the archive does not hold them as they should be; nothing was changed.
        ResourceError: there is not enough room; nothing was changed.
    """
    names = sorted({difference.path for difference in wrong})

    def choose_wrong(member: str) -> str | None:
        name = choose(member)
        return name if name in names else None

    with open_archive(archive, ask, listed=False) as opened, staging(manifest.folder, wait=True) as here:
        opened.check_password()
        require_space(manifest.folder, manifest.size(names))
        files, _ = unpack_chosen(opened, choose_wrong, here, title, enough=len(names))
        for name in names:
            if name not in files or files[name].sha256 != manifest.files[name].sha256:
                what = "other content in" if name in files else "no"
                raise ArchiveError(
                    f"{archive}: there is {what} {name}", hint="this is another archive, or a damaged one"
                )
        flush_all([here.new / name for name in files])
        here.install(list(_moves(here.new, manifest.folder)))
        mark_intact(manifest, names)


def _made_of(archive: Path, folder: Path, expected_sha256: str | None) -> Manifest | None:
    """The folder's manifest, if what it lists came out of this archive."""
    try:
        manifest = Manifest.load(folder)
    except DataError:
        return None  # whatever it lists is unpacked anew
    if manifest is None or manifest.source is None or not manifest.source.is_same(archive):
        return None
    return manifest if expected_sha256 in (None, manifest.source.sha256) else None


def _require_published(archive: Path, sha256: str | None, expected: str | None) -> None:
    if expected is not None and sha256 != expected:
        raise ArchiveError(
            f"{archive}: not the archive that was published: its SHA-256 is {sha256}, not {expected}",
            hint="the file may be incomplete or damaged; get it again",
        )


def _basis(sha256: str | None, expected: str | None) -> Basis:
    if expected is not None:
        return "published"
    return "archive" if sha256 is not None else "recorded"


def _moves(new: Path, target: Path) -> Iterator[tuple[Path | None, Path]]:
    """What to move to bring all that is in ``new`` into ``target``, with the fewest moves."""
    for entry in sorted(new.iterdir()):
        to = target / entry.name
        if entry.is_dir() and to.is_dir():
            yield from _moves(entry, to)
        else:
            yield entry, to
