"""Damaged and missing files of the dataset, rewritten from the archive that they came from."""

from __future__ import annotations

import logging
from pathlib import Path

from mmf_win.archives import Ask
from mmf_win.console import first_few, shell_line
from mmf_win.dataset.layout import find_layout
from mmf_win.dataset.manifest import require_list
from mmf_win.dataset.unpack import unpack
from mmf_win.errors import DatasetError
from mmf_win.integrity.manifest import Manifest, damaged
from mmf_win.integrity.verify import find_damage
from mmf_win.paths import Places, data_option
from mmf_win.unpacking.extract import install_repaired
from mmf_win.unpacking.reading import open_with_progress
from mmf_win.unpacking.staging import finish_installation, staging

_log = logging.getLogger(__name__)


def repair_dataset(places: Places, archive: Path | None = None, *, ask: Ask | None = None) -> list[str]:
    """Rewrite the files of the dataset that are damaged or missing, and end a conversion that was killed.

    Files that mmfw did not write, such as annotations of the user's own, stay as they are.

    Args:
        places: where MMF's data folder is.
        archive: what the dataset was converted from; None to look where it lay then.
        ask: answers with the password; called only for an encrypted archive.

    Returns:
        the files that were written, relative to the dataset's root; empty if all were intact.

    Raises:
        DatasetError: no dataset was converted here, or the archive is not where it lay, and ``archive`` does
            not name it either.
        DamagedManifest: nothing tells which files are damaged; :func:`~mmf_win.dataset.convert.convert`
            with the same archive rewrites all of them.
        ArchiveError: the archive is another one, or damaged; nothing was changed.
        PasswordError: the password is missing or wrong; nothing was changed.
        ResourceError: there is not enough room; nothing was changed.
    """
    paths = places.dataset
    finish_installation(paths.root)
    manifest = require_list(paths)
    if manifest is None:
        message = "nothing tells what it was converted from, nor which of its files are damaged"
        again = shell_line("mmfw", "convert", "--zip", "ARCHIVE", "--force", *data_option(places.data_dir))
        raise DatasetError(message, hint=f"`{again}` writes it again")
    names = [found.path for found in find_damage(manifest, title="Verifying the dataset")]
    if not names:
        return []
    if manifest.was_changed:
        raise damaged(paths.root, "it was changed")
    source = archive or archive_of(manifest)
    _log.info("%s: missing or damaged: %s", paths.root, first_few(names))
    with open_with_progress(source, ask) as opened:
        layout = find_layout(source, opened.members)
        opened.check_password()
        with staging(paths.root) as here:
            _, _, files = unpack(opened, layout, here, allow_missing=True, only=set(names))
            install_repaired(here, manifest, files, names, source)
    _log.info("%s: rewrote what was damaged, from %s", paths.root, source)
    return names


def archive_of(manifest: Manifest | None, hint: str | None = None) -> Path:
    """What a dataset was converted from, where it lay then.

    Args:
        manifest: of the dataset.
        hint: another way out.

    Raises:
        DatasetError: it is not there, or nothing tells where that is.
    """
    by_name = "name it, or its folder, with --source"
    hint = f"{hint}, or {by_name}" if hint else by_name
    source = manifest.source if manifest else None
    if source is None:
        raise DatasetError("nothing tells what the dataset was converted from", hint=hint)
    if not Path(source.path).exists():
        raise DatasetError(f"the archive {source.name} is not where it was", hint=hint)
    return Path(source.path)
