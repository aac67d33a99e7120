"""Gets what a run needs and has not got, and repairs what is damaged with the least work."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mmf_win.errors import DataError, InUseError, MmfError, PasswordError, UsageError
from mmf_win.files import disk_of
from mmf_win.inputs.given import Input
from mmf_win.inputs.mirror import Mirror
from mmf_win.inputs.unpacked import Unpacked
from mmf_win.integrity.finding import Finding
from mmf_win.locking import locked
from mmf_win.paths import Places
from mmf_win.unpacking.staging import require_space

_ASKED_AT_ONCE = 8
_log = logging.getLogger(__name__)


def fetch(inputs: Sequence[Input], places: Places, mirror: Mirror, *, repairs: bool = False) -> list[Finding]:
    """Get what is missing, and repair what is damaged; return what was found afterwards.

    While another process does this with the same data folder, this one says so and waits. Where this only
    ``repairs``, what is missing stays missing; and what cannot be repaired stays damaged, its finding has the
    error, and the rest is repaired.

    Raises:
        MmfError: something cannot be downloaded; what can be had is there.
        DataError: something cannot be repaired, or what came is not what it should be.
        ResourceError: it does not fit on the disk; nothing was downloaded.
    """
    places.data_dir.mkdir(parents=True, exist_ok=True)

    waiting = "another mmfw is fetching into this data folder; waiting for it"
    with locked(places.data_dir / ".mmfw-fetch-lock", math.inf, lambda: _log.info(waiting)):
        found = {each: each.verify() for each in inputs}
        states = ("damaged",) if repairs else ("missing", "damaged")
        wanted = [each for each, finding in found.items() if finding.state in states]
        _require_usable_source(wanted, mirror)
        # As far as the servers tell how large it is. MMF's features take 7 GB packed and 14 GB unpacked.
        lengths = bytes_to_download(wanted, mirror).items()
        for disk, folder in {disk_of(each.folder): each.folder for each in wanted}.items():
            of_disk = [(each, n or 0) for each, n in lengths if disk_of(each.folder) == disk]
            if room := sum((3 if isinstance(each, Unpacked) else 1) * n for each, n in of_disk):
                is_data = folder.is_relative_to(places.data_dir)
                require_space(folder, room, "--data-dir" if is_data else "TORCH_HOME or HF_HOME")
        for each in wanted:
            try:
                each.fetch(mirror, found[each])
            except (DataError, InUseError, MmfError, PasswordError) as error:
                found[each] = replace(found[each], error=error)
            else:
                found[each] = replace(each.verify(), repaired=found[each].problems)
        failed = [finding.error for finding in found.values() if finding.error is not None]
        if failed and not repairs:
            hints = dict.fromkeys(error.hint for error in failed if error.hint)
            raise type(failed[0])("\n".join(map(str, failed)), hint="; ".join(hints))
        return [found[each] for each in inputs]


def bytes_to_download(inputs: Sequence[Input], mirror: Mirror) -> dict[Input, int | None]:
    """How many it would take to get each of them; all servers are asked at the same time."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE, "mmfw-size") as pool:
        return dict(zip(inputs, pool.map(lambda each: each.bytes_to_download(mirror), inputs), strict=True))


def _require_usable_source(inputs: Sequence[Input], mirror: Mirror) -> None:
    """Refuse a source from which nothing would be taken, rather than download all of it from elsewhere."""
    if mirror.path is None or not inputs or any(each.copies(mirror) for each in inputs):
        return
    if names := dict.fromkeys(name for each in inputs for name in each.copy_names()):
        message = f"{mirror.path}: none of the files that are needed is there"
        raise UsageError(message, hint=f"they are called {', '.join(names)}")
    _log.warning("%s is not used, since nothing that is needed comes out of an archive", mirror.path)
