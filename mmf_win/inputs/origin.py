"""What files were made of, as far as that is known, and whether anything known has them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mmf_win.errors import DamagedFeatures, DataError, NoSource
from mmf_win.inputs.listing import Need
from mmf_win.integrity.finding import Finding
from mmf_win.integrity.manifest import Manifest, Source, noted
from mmf_win.paths import Places


def no_source(need: Need, finding: Finding, places: Places, words: Sequence[str] = ()) -> DataError | None:
    """The error that files are damaged or missing and nothing known has them; None where something has.

    Args:
        need: the files.
        finding: what is wrong with them.
        places: MMF's folders.
        words: the preset and the overrides that make a run read them.
    """
    if has_source(need):
        return None
    problems = "; ".join(finding.problems)
    if need.kind == "features":
        return DamagedFeatures(f"{need.folder}: {problems}", lmdb=need.files[0].parent)
    hint = "put an intact copy there; mmfw knows no source of it"
    if need.kind == "glove":
        hint = "put it there, or let MMF begin with random vectors: vocab.type=random"
    return NoSource(f"{need.title}: {problems}", hint=hint, words=words, data_dir=places.data_dir)


def has_source(need: Need) -> bool:
    """Whether they can be downloaded, or an archive is known that they came out of."""
    return not is_built(need) and bool(need.entry or need.url or source_of(need))


def loaded(need: Need) -> Manifest | None:
    """The manifest of the folder, without files where it is damaged; None where there is none."""
    if not need.has_manifest:
        return None
    with suppress(DataError):
        if manifest := Manifest.load(need.folder):
            return manifest
    return noted(need.folder)


def is_made_of(need: Need, archive: Path) -> bool:
    """Whether the files were made of this very archive, which nobody has published."""
    manifest = loaded(need)
    source = manifest.source if manifest and manifest.basis in ("archive", "recorded") else None
    return source is not None and source.is_same(archive)


def is_built(need: Need) -> bool:
    """Whether mmfw made it of the user's own files."""
    manifest = loaded(need) if need.kind == "features" else None
    return manifest is not None and manifest.basis == "built"


def source_of(need: Need) -> Source | None:
    """The archive that the files were made of, as far as that is known."""
    manifest = loaded(need)
    return manifest.source if manifest else None
