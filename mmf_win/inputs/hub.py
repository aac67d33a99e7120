"""Models in transformers' format: in Hugging Face's cache, or in a folder of the user's.

One of the Hub is named ``owner/name``, for its newest version, or ``owner/name@revision``.

Windows without developer mode has only hard links, and huggingface_hub moves its files into a snapshot. mmfw
then gives them their names among the blobs, too, by which they are verified (see
:mod:`~mmf_win.inputs.known_hashes`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mmf_win.errors import MmfEnvironmentError
from mmf_win.files import DISK_FULL_ERRNOS, atomic_replace, link_or_copy, read_json, write_bytes
from mmf_win.inputs.input_files import InputFiles, Mirror
from mmf_win.inputs.known_hashes import BLOB_NAME, contradicts_hash
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import Manifest
from mmf_win.integrity.verify import VerificationResult
from mmf_win.paths import MmfPaths, expand_home
from mmf_win.upstream.install import require_packages

#: What transformers looks for, in this order.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")

_MODEL_FILES = (
    *("config.json", "vocab.txt", "tokenizer_config.json", "tokenizer.json"),
    *("special_tokens_map.json", "added_tokens.json"),
)
_VOCABULARY_FILES = ("tokenizer.json", "vocab.txt")
_KNOWN_MODEL_TYPES = {"bert", "clip"}  # types of models of which mmfw knows all files that are read
SAFETENSORS = WEIGHTS[:1]
# The file of weights of a revision, and its SHA-256 as others have published it.
_PUBLISHED_WEIGHTS = {
    "openai/clip-vit-base-patch32@b33cedfd0df4e43b8238760678fcc89e1a0d38b3": (
        SAFETENSORS,
        "99d28a652e6ec46629ab7047a0ac82c69b1fe11e0ce672c43af65d3a9a3fc05d",
    ),
    "openai/clip-vit-large-patch14-336@ce19dc912ca5cd21c8a653c79e251e808ccabcd1": (
        WEIGHTS[1:],
        "c6032c2e0caae3dc2d4fba35535fa6307dbb49df59c7e182b1bc4b3329b81801",
    ),
}
_log = logging.getLogger(__name__)
_NO_COMMIT = "0" * 40  # of a copy, which nobody knows the version of


@dataclass(frozen=True)
class LocalModelInput(InputFiles):
    """A model in a folder of the user's; ``weights`` are the files that may hold them.

    Without any, it is only what its tokenizer reads.
    """

    weights: Sequence[str] = ()

    def files(self) -> list[Path]:
        """Those that transformers would read, as far as they are there; the weights last."""
        return _list_model_files(self.folder, weights=self.weights)

    def _list_missing_names(self, files: Sequence[Path]) -> list[str]:
        """Of what a model must have, of each the name of the first choice, what is not among the files."""
        names = {path.name for path in files}
        wanted = (("config.json",), _VOCABULARY_FILES, self.weights)
        return [some[0] for some in wanted if some and names.isdisjoint(some)]

    def _list_missing(self, files: Sequence[Path]) -> list[Path]:
        there = bool(files) or self.folder.is_dir()
        return [self.folder / name for name in self._list_missing_names(files)] if there else [self.folder]


@dataclass(frozen=True)
class HubModelInput(LocalModelInput):
    """A model of the Hugging Face Hub; its source is its name, such as ``owner/name``."""

    source: str = ""

    @property
    def _name(self) -> str:
        return self.source.partition("@")[0]

    @property
    def _revision(self) -> str | None:
        return self.source.partition("@")[2] or None

    def published_origin(self) -> tuple[str | None, str | None]:
        """Its name, and the SHA-256 of its weights, as far as that is known."""
        return self.source, _PUBLISHED_WEIGHTS[self.source][1] if self.source in _PUBLISHED_WEIGHTS else None

    def _verified_against(self, files: Iterable[Path], hashes: Manifest) -> str:
        of_weights = self.weights and self.published_origin()[1]
        return "the published SHA-256" if of_weights else super()._verified_against(files, hashes)

    def _to_intact_result(
        self, finding: VerificationResult, files: Iterable[Path], hashes: Manifest, verified: float
    ) -> VerificationResult:
        weights, sha256 = str([*files][-1]), self.published_origin()[1]
        entry = hashes.files.get(weights)  # None of a file that changed while it was read
        if self.weights and sha256 and entry and entry.sha256 != sha256:
            problem = f"changed: {weights} (not the weights of {self.source})"
            return replace(finding, state="damaged", problems=(problem,))
        return super()._to_intact_result(finding, files, hashes, verified)

    def files(self) -> list[Path]:
        """Those of its newest version that is there."""
        return _list_model_files(find_snapshot(self.source) or self.folder, weights=self.weights)

    def find_copies(self, mirror: Mirror) -> Sequence[Path]:
        """The folders with a copy of it: of its name, or as in Hugging Face's home or cache.

        The mirror is such a folder, or one above it.
        """
        if (place := mirror.path) is None:
            return []
        own, cached = self._name.rpartition("/")[2], _cache_folder(self.source).name
        is_its_own = own == place.name or cached in place.parts
        folders = [place] if is_its_own else [place / own, place / self._name]
        for above in (place, place / cached, place / "hub" / cached):
            folders += (above / "snapshots").glob("*") if above.name == cached else ()
        return [
            each
            for each in folders
            if not self._list_missing_names(_list_model_files(each, weights=self.weights))
        ]

    def fetch(self, mirror: Mirror, finding: VerificationResult) -> None:
        """Copy or download it into Hugging Face's cache."""
        if found := next(filter(self._has_published_weights, self.find_copies(mirror)), None):
            self._copy_into_cache(found)
        elif mirror.offline or _is_offline():
            raise mirror.missing_error(self.title, [self.source])
        else:
            self._download(mirror)

    def _has_published_weights(self, copy: Path) -> bool:
        """Whether the weights in a copy are those that are published, as far as these are known."""
        sha256 = self.published_origin()[1]
        if not self.weights or sha256 is None:
            return True
        weights = _list_model_files(copy, weights=self.weights)[-1]
        if file_digest(weights).hex() == sha256:
            return True
        _log.warning("%s: not the weights of %s", weights, self.source)
        return False

    def _copy_into_cache(self, source: Path) -> None:
        """Copy the model in a folder into Hugging Face's cache, in place of what is there of it."""
        cached = _cache_folder(self.source)
        target = find_snapshot(self.source) or cached / "snapshots" / (self._revision or _NO_COMMIT)
        target.mkdir(parents=True, exist_ok=True)
        for path in _list_model_files(source, weights=self.weights or WEIGHTS):
            with atomic_replace(target / path.name) as temporary:
                shutil.copyfile(path, temporary)
        if self._revision is None:
            (cached / "refs").mkdir(exist_ok=True)
            write_bytes(cached / "refs" / "main", target.name.encode())

    def _download(self, mirror: Mirror) -> None:
        """Download it by the library that the cache is of.

        That resumes, verifies sizes and hashes, and puts a file in place only when it is complete. Of the
        files that are there, those are replaced that are not what their hashes say, or all if none is known.
        """
        require_packages("huggingface_hub")
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every retry
        there = [path for path in self.files() if path.is_file()]
        replaced = {path.name for path in list(filter(contradicts_hash, there)) or there}

        def download_file(file: str) -> bool:
            again = file in replaced
            try:
                path = Path(
                    hf_hub_download(
                        self._name,
                        file,
                        revision=self._revision,
                        cache_dir=_hub_cache_dir(),
                        force_download=again,
                    )
                )
                if not path.is_symlink():
                    url = hf_hub_url(self._name, file, revision=path.parent.name)
                    _link_to_blob(path, get_hf_file_metadata(url).etag)
            except LocalEntryNotFoundError:  # nobody answered; it counts as not found, too
                raise
            except EntryNotFoundError:
                return False
            return True

        try:
            found = {file for file in _MODEL_FILES if download_file(file)}
            if self.weights and not any(download_file(file) for file in self.weights):
                raise MmfEnvironmentError(f"{self.source}: the Hugging Face Hub has no weights of it")
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
                raise
            reason = " ".join(str(error).split("\n")[0].split())
            message = f"cannot download {self.source} from the Hugging Face Hub: {reason}"
            hint = "check the connection (HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror)"
            raise mirror.download_error(message, [self.source], hint) from error
        if "config.json" not in found or found.isdisjoint(_VOCABULARY_FILES):
            raise MmfEnvironmentError(
                f"{self.source}: the Hugging Face Hub has no configuration or vocabulary of it"
            )


def make_model_input(
    name: str, places: MmfPaths, *, weights: Sequence[str], kind: str = "BERT"
) -> LocalModelInput:
    """A model, by its name on the Hugging Face Hub or by its folder.

    Args:
        weights: the files that may hold what is read of them, the first choice first; none for a tokenizer.
        kind: what people call it.
    """
    folder = Path(name)
    kind = kind if weights else "tokenizer"
    if folder.is_dir() or folder.is_absolute() or name.count("/") > 1:  # which no name on the Hub has
        return LocalModelInput(f"{kind} {folder.name}", folder, places, weights=weights)
    title = f"{kind} {folder.name.partition('@')[0]}"
    if weights and name in _PUBLISHED_WEIGHTS:
        weights = _PUBLISHED_WEIGHTS[name][0]
    return HubModelInput(title, _cache_folder(name), places, source=name, weights=weights)


def find_snapshot(name: str) -> Path | None:
    """The folder of a model in Hugging Face's cache, by default of its newest version; None without one."""
    folder, revision = _cache_folder(name), name.partition("@")[2]
    if revision and (named := folder / "snapshots" / revision).is_dir():
        return named
    try:
        commit = (folder / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def name_from_snapshot(snapshot: Path) -> str | None:
    """The name of the model in this folder, with its revision if that is not the newest; None without one."""
    if snapshot.parent.name != "snapshots":
        return None
    name = snapshot.parents[1].name.removeprefix("models--").replace("--", "/")
    return name if snapshot == find_snapshot(name) else f"{name}@{snapshot.name}"


def is_known_model_type(folder: Path) -> bool:
    """Whether the model in a folder is one that reads no other files, by its configuration."""
    with suppress(OSError, ValueError, AttributeError):  # it may be no object
        return read_json(folder / "config.json").get("model_type") in _KNOWN_MODEL_TYPES
    return False


def _hub_cache_dir() -> Path:
    """Where transformers looks for models of the Hugging Face Hub, as its own variables say."""
    home = os.environ.get("HF_HOME", Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    names = ("TRANSFORMERS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    chosen = next((os.environ[name] for name in names if os.environ.get(name)), str(Path(home, "hub")))
    return expand_home(os.path.expandvars(chosen))


def _is_offline() -> bool:
    """Whether the variables forbid transformers to download anything (huggingface_hub.constants)."""
    chosen = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return chosen.upper() in {"1", "ON", "YES", "TRUE"}


def _cache_folder(name: str) -> Path:
    """The folder in the cache that holds all versions of a model."""
    return _hub_cache_dir() / f"models--{name.partition('@')[0].replace('/', '--')}"


def _list_model_files(folder: Path, *, weights: Sequence[str]) -> list[Path]:
    there, of_weights = (
        [name for name in names if (folder / name).is_file()] for names in (_MODEL_FILES, weights)
    )
    return [folder / name for name in (*there, *of_weights[:1])]


def _link_to_blob(path: Path, etag: str | None) -> None:
    """Finish the download of a file of a snapshot where there are no symbolic links, by a hard link.

    Where there was a file before, it is still that one: the library replaces only links, and leaves what it
    has downloaded among the blobs, under the hash that the Hub has ``told``.
    """
    if etag is None or not BLOB_NAME.fullmatch(etag):
        return
    blob = path.parents[2] / "blobs" / etag
    if blob.is_file():
        link_or_copy(blob, path)
    else:
        with suppress(OSError):  # FAT has none of these links either
            blob.hardlink_to(path)
