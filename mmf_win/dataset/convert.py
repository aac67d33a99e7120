"""From an archive of the dataset to MMF's layout.

Everything is written to a staging folder on the same disk, verified there, and moved into place at the end,
so a conversion that was killed leaves nothing that looks finished, and the next one goes on where it ended.
The archive is only read.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mmf_win.archives import Archive, Ask, Digest, Extracted
from mmf_win.console import Progress, say
from mmf_win.crc import crc32
from mmf_win.dataset import known
from mmf_win.dataset.annotations import SPLITS, Row, keep_rows, make_plain, read_rows
from mmf_win.dataset.check import SplitSummary, require_images, shared_ids
from mmf_win.dataset.layout import Layout, find_images, find_layout
from mmf_win.dataset.own_memes import write_annotations
from mmf_win.dataset.own_splits import read_tables, require_names_apart
from mmf_win.dataset.record import Record
from mmf_win.errors import ArchiveError, DatasetError
from mmf_win.integrity import Checksum, Source, manifest_files
from mmf_win.paths import DatasetPaths, Places
from mmf_win.unpacking.journal import Journal
from mmf_win.unpacking.opening import open_with_progress
from mmf_win.unpacking.staging import (
    Staging,
    flush_all,
    left_over,
    require_space,
    staging,
    was_killed_while_installing,
)


@dataclass(frozen=True)
class Conversion:
    """What a conversion has brought about, now or earlier.

    Attributes:
        target: the dataset's root in MMF's layout.
        splits: what each split holds.
        shared_ids: how many ids two splits have in common, for pairs that have some.
        images: how many images there are.
        extra_images: how many of them no split names.
        sha256: of the archive; None for a folder.
        known: whether that is the hash of a published archive; None for a folder.
        already_done: whether an earlier conversion of the same archive was found whole, and nothing was done.
        seconds: how long this took.
    """

    target: Path
    splits: Mapping[str, SplitSummary]
    shared_ids: Mapping[str, int]
    images: int
    extra_images: int
    sha256: str | None
    known: bool | None
    already_done: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values for a script or a record."""
        return {**asdict(self), "target": str(self.target)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Conversion:
        """What :meth:`to_json` made."""
        splits = {split: SplitSummary.from_json(summary) for split, summary in value["splits"].items()}
        return cls(**{**value, "target": Path(value["target"]), "splits": splits})


def convert(
    source: Path,
    places: Places,
    *,
    ask: Ask | None = None,
    force: bool = False,
    allow_missing: bool = False,
) -> Conversion:
    """Put the dataset in ``source`` where MMF looks for it.

    Args:
        source: an archive of any kind that :mod:`mmf_win.archives` reads, or a folder.
        places: where MMF's data folder is.
        ask: answers with the password; called only for an encrypted archive.
        force: replace images and annotations that came from elsewhere. Features and extras always stay.
        allow_missing: leave out rows whose image is missing instead of refusing the archive.

    Raises:
        ArchiveError: the archive is damaged, hostile or none at all.
        DatasetError: it holds something else, its parts disagree, or there is another dataset already.
        PasswordError: the password is missing or wrong; nothing was written.
        ResourceError: it does not fit on the disk; nothing was written.
        UsageError: another conversion into the same folder is under way.
    """
    started = time.monotonic()
    source = source.absolute()
    paths = places.dataset
    record = Record.load(paths.record)
    same = record is not None and record.source.is_same(source)
    if record is not None and same and not force:
        broken = record.broken_files(paths.root)
        if not broken:
            earlier = Conversion.from_json(record.result)
            return replace(earlier, target=paths.root, already_done=True, seconds=time.monotonic() - started)
        say(f"{len(broken)} files of the dataset are missing or changed ({broken[0]}); converting it again")
    interrupted = record is None and was_killed_while_installing(paths.root)
    with open_with_progress(source, ask) as archive:
        layout = find_layout(source, archive.members)
        if not (force or same or interrupted):
            _require_empty(paths)
        archive.check_password()
        made_of = Source.of(source)
        purpose = json.dumps([made_of.name, made_of.size, made_of.mtime_ns])
        require_space(paths.root, _size(archive, layout) - left_over(paths.root, purpose))
        with staging(paths.root, purpose=purpose) as here:
            return _convert(archive, layout, here, paths, allow_missing, started)


def _convert(
    archive: Archive, layout: Layout, here: Staging, paths: DatasetPaths, allow_missing: bool, started: float
) -> Conversion:
    digest = hashlib.sha256() if archive.path.is_file() else None
    rows, own_images = _unpack_annotations(archive, layout, here)
    with (
        Journal(here.journal, here.new) as journal,
        _image_archive(archive, layout, here, journal, digest) as (holder, images),
    ):
        images = {**images, **(own_images if holder is archive else {})}
        if not images:
            raise DatasetError(f"{archive.path}: there are annotations in it, but no images")
        if not allow_missing:
            require_images(archive.path, rows, images)
        if layout.tables:
            require_names_apart(images, {row.img for listed in rows.values() for row in listed})
        files = _unpack_images(holder, images, here, journal, digest if holder is archive else None)
    sha256 = None if digest is None else digest.hexdigest()

    kept = {split: [row for row in rows[split] if row.img in images] for split in rows}
    missing = {split: [row for row in rows[split] if row.img not in images] for split in rows}
    for split, stay in kept.items():
        file = here.new / "annotations" / f"{split}.jsonl"
        if len(stay) < len(rows[split]):
            keep_rows(file, stay)
        files[f"annotations/{split}.jsonl"] = Checksum(file.stat().st_size, crc32(file.read_bytes()))
    named = {row.img for split in rows.values() for row in split}
    result = Conversion(
        target=paths.root,
        splits={
            split: SplitSummary.of(stay, missing[split], own=split in layout.tables)
            for split, stay in kept.items()
        },
        shared_ids=shared_ids(kept),
        images=len(images),
        extra_images=len(images.keys() - named),
        sha256=sha256,
        known=None if sha256 is None else known.is_known(sha256),
        already_done=False,
        seconds=time.monotonic() - started,
    )
    Record(Source.of(archive.path, sha256), files, result.to_json()).save(here.new / "record.json")
    _install(here, paths, list(rows))
    return result


def _unpack_annotations(
    archive: Archive, layout: Layout, here: Staging
) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """Stage the annotations before the images: what is wrong with them shows within a second.

    Returns:
        the rows of each split; and image → member, for those that the user's own tables name.
    """
    for name in layout.ignored:
        say(f"note: {name} is left aside, since the same split is there as .jsonl")
    staged = {
        split: here.new / "annotations" / f"{split}{'.csv' if split in layout.tables else '.jsonl'}"
        for split in layout.annotations
    }
    for _ in archive.extract({member: staged[split] for split, member in layout.annotations.items()}):
        pass
    shown = {split: f"{archive.path}: {member}" for split, member in layout.annotations.items()}
    rows = {
        split: read_rows(file, shown=shown[split])
        for split, file in staged.items()
        if split not in layout.tables
    }
    for split in rows:
        if make_plain(staged[split]):
            member = layout.annotations[split]
            say(f"note: {member}: converted to one JSON object a line in plain UTF-8, as MMF reads it")
            rows[split] = read_rows(staged[split])
    taken = {row.id for listed in rows.values() for row in listed}
    names = {member.name for member in archive.members}
    own, images = read_tables(staged, layout.tables, archive.path, names, taken)
    for split, listed in own.items():
        path = here.new / "annotations" / f"{split}.jsonl"
        write_annotations(path, listed)
        rows[split] = read_rows(path, shown=shown[split])
    return {split: rows[split] for split in layout.annotations}, images


@contextmanager
def _image_archive(
    archive: Archive, layout: Layout, here: Staging, journal: Journal, digest: Digest | None
) -> Iterator[tuple[Archive, dict[str, str]]]:
    """The archive that holds the images, which may be one inside the other, and image → member in it."""
    if layout.packed_images is None:
        yield archive, layout.images
        return
    packed = here.new / Path(layout.packed_images).name
    # When an earlier start has unpacked it already, this one still reads the whole archive to know its hash.
    wanted = {} if journal.still_good([packed.name]) else {layout.packed_images: packed}
    _unpack("Unpacking the images' archive", archive, wanted, journal, digest)
    with (
        _told_as(f"{archive.path}: member {layout.packed_images}", packed),
        open_with_progress(packed) as inner,
    ):
        yield inner, find_images(member.name for member in inner.members)
    packed.unlink()


@contextmanager
def _told_as(name: str, path: Path) -> Iterator[None]:
    """What is wrong with the archive at ``path``, which the user has never seen, is told of ``name``."""
    try:
        yield
    except ArchiveError as error:
        raise ArchiveError(str(error).replace(str(path), name), hint=error.hint) from error


def _unpack_images(
    holder: Archive, images: Mapping[str, str], here: Staging, journal: Journal, digest: Digest | None
) -> dict[str, Checksum]:
    """Stage the images that an earlier start has not; return what each is."""
    files = {entry.name: Checksum(entry.size, entry.crc32) for entry in journal.still_good(images)}
    wanted = {member: here.new / Path(image) for image, member in images.items() if image not in files}
    by_name = {member.name: member.size for member in holder.members}
    require_space(here.new, sum(by_name[member] for member in wanted))
    before = sum(checksum.size for checksum in files.values())
    for done in _unpack("Converting", holder, wanted, journal, digest, before=before):
        files[done.target.relative_to(here.new).as_posix()] = Checksum(done.size, done.crc32)
    return {f"images/{image}": checksum for image, checksum in files.items()}


def _unpack(
    title: str,
    archive: Archive,
    wanted: Mapping[str, Path],
    journal: Journal,
    digest: Digest | None,
    *,
    before: int = 0,
) -> list[Extracted]:
    """Extract with a bar, of which ``before`` bytes are done, and note in the journal what is complete."""
    total = before + sum(member.size for member in archive.members if member.name in wanted)
    all_done = []
    with Progress(title, total, initial=before) as bar:
        for done in archive.extract(wanted, bar.advance, digest):
            journal.note(done)
            all_done.append(done)
    return all_done


def _install(here: Staging, paths: DatasetPaths, splits: list[str]) -> None:
    """Move everything into place, the record last.

    Annotations of the other phase must not stay behind; what the user has put beside them does.
    """
    record = Record.load(paths.record)
    before = [
        split
        for split in _splits_of_a_release(paths)
        if record is None or f"annotations/{split}.jsonl" in record.files
    ]
    moves: list[tuple[Path | None, Path]] = [(None, paths.record)]
    moves += [(None, path) for path in manifest_files(paths.root)]
    moves += [(here.new / "img", paths.images / "img")]
    moves += [(None, paths.split(split)) for split in before if split not in splits]
    moves += [(here.new / "annotations" / f"{split}.jsonl", paths.split(split)) for split in splits]
    moves += [(here.new / "record.json", paths.record)]
    # Else a power cut might leave the record and not what it vouches for. The size of a file does not always
    # tell: NTFS may keep it and lose the content. The moves need no more: file systems keep their order.
    flush_all([file for file in here.new.rglob("*") if file.is_file()])
    here.install(moves)


def _require_empty(paths: DatasetPaths) -> None:
    if _splits_of_a_release(paths) or (paths.images / "img").exists():
        raise DatasetError(
            f"{paths.root}: there is a dataset already that was not made from this archive",
            hint="--force replaces its images and annotations; --data-dir chooses another folder",
        )


def _splits_of_a_release(paths: DatasetPaths) -> list[str]:
    return [split for split in SPLITS if paths.split(split).is_file()]


def _size(archive: Archive, layout: Layout) -> int:
    """Bytes that the wanted members take; an archive inside is there twice for a while."""
    sizes = {member.name: member.size for member in archive.members}
    packed = 2 * sizes[layout.packed_images] if layout.packed_images else 0
    return packed + sum(sizes[name] for name in (*layout.annotations.values(), *layout.images.values()))
