"""What was found in files that lie in folders of others, where no manifest of ours belongs.

``<MMF's cache folder>/mmfw-checked.json`` keeps the hash of each, and the state in which it was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from mmf_win.console import Progress, say
from mmf_win.files import read_json, write_json
from mmf_win.inputs.caches import git_id_in_name, hash_in_name
from mmf_win.integrity import Check, Difference
from mmf_win.integrity.git_tree import file_blob_id
from mmf_win.integrity.parallel import hash_files
from mmf_win.paths import Places

_FORMAT = 1


@dataclass(frozen=True)
class Seen:
    """A file that was read once.

    Attributes:
        sha256: its hash then.
        check: its state then.
    """

    sha256: str
    check: Check


class Ledger:
    """The files that were read so far.

    Args:
        places: MMF's folders.
    """

    def __init__(self, places: Places) -> None:
        self._path = places.cache_dir / "mmfw-checked.json"
        self._seen: dict[str, Seen] = {}
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            value = read_json(self._path)
            if value["format"] == _FORMAT:
                self._seen = {
                    path: Seen(str(sha256), Check(*map(int, check)))
                    for path, (sha256, check) in value["files"].items()
                }

    @property
    def paths(self) -> list[Path]:
        """The files, there or not."""
        return [Path(path) for path in self._seen]

    def last_check(self, path: Path) -> float | None:
        """When a file was found right that nobody has touched since, in seconds since the epoch."""
        seen = self._seen.get(str(path))
        with suppress(OSError):
            if seen is not None and seen.check.still_holds(path.stat()):
                return seen.check.checked_ns / 1e9
        return None

    def verify(self, paths: Iterable[Path], *, full: bool = False) -> list[Difference]:
        """Compare files with their names where these hold a hash, and with what was found in them before.

        A file for which nothing but an earlier reading vouches may be replaced by its owner: then it is
        recorded anew, and said. One whose content changes while its time and size stay is damaged.

        Args:
            paths: the files; all of them are there.
            full: read every file.

        Returns:
            what is wrong, each with the file's whole path.
        """
        to_read = {str(path): path for path in paths if full or self.last_check(path) is None}
        wrong = []
        if to_read:
            sizes = {key: path.stat().st_size for key, path in to_read.items()}
            with Progress("Verifying", sum(sizes.values())) as bar:
                for key, sha256, check in hash_files(to_read, bar.advance):
                    if difference := self._compare(to_read[key], sha256, check):
                        wrong.append(difference)
            self._save()
        return wrong

    def _compare(self, path: Path, sha256: str | OSError, check: Check | None) -> Difference | None:
        before = self._seen.pop(str(path), None)
        if isinstance(sha256, OSError):
            return Difference("unreadable", str(path), sha256.strerror or str(sha256))
        named, git_id = hash_in_name(path), git_id_in_name(path)
        if named and not sha256.startswith(named):
            return Difference("changed", str(path), "not what its name says")
        if git_id and file_blob_id(path.resolve()) != git_id:
            return Difference("changed", str(path), "not what its name says")
        if before and not (named or git_id) and before.sha256 != sha256:
            if check and (before.check.size, before.check.mtime_ns) == (check.size, check.mtime_ns):
                self._seen[str(path)] = before
                return Difference("changed", str(path), "other content, though its time stayed the same")
            say(f"note: {path} was replaced since it was last read")
        if check is not None:
            self._seen[str(path)] = Seen(sha256, check)
        return None

    def _save(self) -> None:
        """Remember it; where that cannot be, everything is read again the next time."""
        files = {path: (seen.sha256, astuple(seen.check)) for path, seen in sorted(self._seen.items())}
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, {"format": _FORMAT, "files": files})
