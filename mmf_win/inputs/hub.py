"""Models in the format of transformers: in Hugging Face's cache or in a folder of the user.

A model of the Hub is named ``owner/name`` for its newest version, or ``owner/name@revision``.

Without developer mode, Windows has only hard links, and huggingface_hub moves files into the snapshot.
mmfw then also links them under their blob names, by which they are verified (see
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

#: File names of weights, in the order in which transformers looks for them.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")

_MODEL_FILES = (
    *("config.json", "vocab.txt", "tokenizer_config.json", "tokenizer.json"),
    *("special_tokens_map.json", "added_tokens.json"),
)
_VOCABULARY_FILES = ("tokenizer.json", "vocab.txt")
_KNOWN_MODEL_TYPES = {"bert", "clip"}  # model types for which mmfw knows all files that are read
SAFETENSORS = WEIGHTS[:1]
# File of weights and its published SHA-256, for a revision of a model.
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
_NO_COMMIT = "0" * 40  # for a copy of an unknown version


@dataclass(frozen=True)
class LocalModelInput(InputFiles):
    """Model in a folder of the user.

    Attributes:
        weights: File names of the weights, in order of preference; empty for the tokenizer only.
    """

    weights: Sequence[str] = ()

    def files(self) -> list[Path]:
        """Return the existing files that transformers would read; the weights are last."""
        return _list_model_files(self.folder, weights=self.weights)

    def _list_missing_names(self, files: Sequence[Path]) -> list[str]:
        """Return the required names that are missing; of several choices, the first."""
        names = {path.name for path in files}
        required = (("config.json",), _VOCABULARY_FILES, self.weights)
        return [choices[0] for choices in required if choices and names.isdisjoint(choices)]

    def _list_missing(self, files: Sequence[Path]) -> list[Path]:
        exists = bool(files) or self.folder.is_dir()
        return [self.folder / name for name in self._list_missing_names(files)] if exists else [self.folder]


@dataclass(frozen=True)
class HubModelInput(LocalModelInput):
    """Model of the Hugging Face Hub; its source is its name, such as ``owner/name``."""

    source: str = ""

    @property
    def _name(self) -> str:
        return self.source.partition("@")[0]

    @property
    def _revision(self) -> str | None:
        return self.source.partition("@")[2] or None

    def published_origin(self) -> tuple[str | None, str | None]:
        """Return the name, and the SHA-256 of the weights if it is known."""
        return self.source, _PUBLISHED_WEIGHTS[self.source][1] if self.source in _PUBLISHED_WEIGHTS else None

    def _verified_against(self, files: Iterable[Path], manifest: Manifest) -> str:
        weights_sha256 = self.weights and self.published_origin()[1]
        return "the published SHA-256" if weights_sha256 else super()._verified_against(files, manifest)

    def _to_intact_result(
        self, result: VerificationResult, files: Iterable[Path], manifest: Manifest, verified: float
    ) -> VerificationResult:
        weights_path, sha256 = str([*files][-1]), self.published_origin()[1]
        entry = manifest.files.get(weights_path)  # None if the file changed while it was read
        if self.weights and sha256 and entry and entry.sha256 != sha256:
            problem = f"changed: {weights_path} (not the weights of {self.source})"
            return replace(result, state="damaged", problems=(problem,))
        return super()._to_intact_result(result, files, manifest, verified)

    def files(self) -> list[Path]:
        """Return the files of the newest cached revision."""
        return _list_model_files(find_snapshot(self.source) or self.folder, weights=self.weights)

    def find_copies(self, mirror: Mirror) -> Sequence[Path]:
        """Return complete copies of the model in a folder.

        A copy is named like the model, or has the layout of Hugging Face's home or cache.

        Args:
            mirror: Its path is such a folder, or a parent of it.

        Returns:
            Folders with all required files.
        """
        if (folder := mirror.path) is None:
            return []
        short_name, cache_name = self._name.rpartition("/")[2], _cache_folder(self.source).name
        is_copy = short_name == folder.name or cache_name in folder.parts
        candidates = [folder] if is_copy else [folder / short_name, folder / self._name]
        for parent in (folder, folder / cache_name, folder / "hub" / cache_name):
            candidates += (parent / "snapshots").glob("*") if parent.name == cache_name else ()
        return [
            candidate
            for candidate in candidates
            if not self._list_missing_names(_list_model_files(candidate, weights=self.weights))
        ]

    def fetch(self, mirror: Mirror, result: VerificationResult) -> None:
        """Copy or download the model into Hugging Face's cache.

        Raises:
            MmfEnvironmentError: There is no copy, and the download is disabled or failed.
        """
        del result  # the model is replaced, whatever its state
        if copy := next(filter(self._has_published_weights, self.find_copies(mirror)), None):
            self._copy_into_cache(copy)
        elif mirror.offline or _is_offline():
            raise mirror.missing_error(self.title, [self.source])
        else:
            self._download(mirror)

    def _has_published_weights(self, copy: Path) -> bool:
        """Return whether a copy has the published weights; True if their SHA-256 is unknown."""
        sha256 = self.published_origin()[1]
        if not self.weights or sha256 is None:
            return True
        weights = _list_model_files(copy, weights=self.weights)[-1]
        if file_digest(weights).hex() == sha256:
            return True
        _log.warning("%s: not the weights of %s", weights, self.source)
        return False

    def _copy_into_cache(self, source: Path) -> None:
        """Copy a model into Hugging Face's cache and replace existing files."""
        cache_folder = _cache_folder(self.source)
        target = find_snapshot(self.source) or cache_folder / "snapshots" / (self._revision or _NO_COMMIT)
        target.mkdir(parents=True, exist_ok=True)
        for path in _list_model_files(source, weights=self.weights or WEIGHTS):
            with atomic_replace(target / path.name) as temporary:
                shutil.copyfile(path, temporary)
        if self._revision is None:
            (cache_folder / "refs").mkdir(exist_ok=True)
            write_bytes(cache_folder / "refs" / "main", target.name.encode())

    def _download(self, mirror: Mirror) -> None:
        """Download the model with huggingface_hub, to which the cache belongs."""
        # It resumes downloads, verifies sizes and hashes, and stores only complete files. Existing files are
        # replaced if they contradict the hashes in their names; if none does, all are replaced.
        require_packages("huggingface_hub")
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every retry
        existing = [path for path in self.files() if path.is_file()]
        names_to_replace = {path.name for path in list(filter(contradicts_hash, existing)) or existing}

        def download_file(file: str) -> bool:
            force = file in names_to_replace
            try:
                path = Path(
                    hf_hub_download(
                        self._name, file, revision=self._revision, cache_dir=_hub_cache_dir(), force_download=force
                    )
                )
                if not path.is_symlink():
                    url = hf_hub_url(self._name, file, revision=path.parent.name)
                    _link_to_blob(path, get_hf_file_metadata(url).etag)
            except LocalEntryNotFoundError:  # no answer; a subclass of EntryNotFoundError
                raise
            except EntryNotFoundError:
                return False
            return True

        try:
            downloaded = {file for file in _MODEL_FILES if download_file(file)}
            if self.weights and not any(download_file(file) for file in self.weights):
                raise MmfEnvironmentError(f"{self.source}: no weights on the Hugging Face Hub")
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
                raise
            reason = " ".join(str(error).split("\n")[0].split())
            message = f"{self.source}: cannot be downloaded from the Hugging Face Hub: {reason}"
            hint = "check the network connection (set HTTPS_PROXY for a proxy, HF_ENDPOINT for a mirror)"
            raise mirror.download_error(message, [self.source], hint) from error
        if "config.json" not in downloaded or downloaded.isdisjoint(_VOCABULARY_FILES):
            raise MmfEnvironmentError(f"{self.source}: no configuration or vocabulary on the Hugging Face Hub")


def make_model_input(name: str, mmf_paths: MmfPaths, *, weights: Sequence[str], kind: str = "BERT") -> LocalModelInput:
    """Return the input of a model, given by its name on the Hugging Face Hub or by its folder.

    Args:
        name: Name or folder.
        mmf_paths: Folders of MMF.
        weights: File names of the weights, in order of preference; empty for the tokenizer only.
        kind: Name of the architecture in messages.

    Returns:
        A :class:`HubModelInput` for a name, else a :class:`LocalModelInput`.
    """
    folder = Path(name)
    kind = kind if weights else "tokenizer"
    if folder.is_dir() or folder.is_absolute() or name.count("/") > 1:  # not a name on the Hub
        return LocalModelInput(f"{kind} {folder.name}", folder, mmf_paths, weights=weights)
    title = f"{kind} {folder.name.partition('@')[0]}"
    if weights and name in _PUBLISHED_WEIGHTS:
        weights = _PUBLISHED_WEIGHTS[name][0]
    return HubModelInput(title, _cache_folder(name), mmf_paths, source=name, weights=weights)


def find_snapshot(name: str) -> Path | None:
    """Return a model's folder in Hugging Face's cache, by default of the newest revision, or None."""
    folder, revision = _cache_folder(name), name.partition("@")[2]
    if revision and (revision_folder := folder / "snapshots" / revision).is_dir():
        return revision_folder
    try:
        commit = (folder / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def name_from_snapshot(snapshot: Path) -> str | None:
    """Return the name of the model in a snapshot, with its revision unless it is the newest, or None."""
    if snapshot.parent.name != "snapshots":
        return None
    name = snapshot.parents[1].name.removeprefix("models--").replace("--", "/")
    return name if snapshot == find_snapshot(name) else f"{name}@{snapshot.name}"


def is_known_model_type(folder: Path) -> bool:
    """Return whether mmfw knows all files that this type of model reads, according to its configuration."""
    with suppress(OSError, ValueError, AttributeError):  # the JSON value may not be an object
        return read_json(folder / "config.json").get("model_type") in _KNOWN_MODEL_TYPES
    return False


def _hub_cache_dir() -> Path:
    """Return the folder in which transformers caches models, according to the environment variables."""
    home = os.environ.get("HF_HOME", Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    names = ("TRANSFORMERS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    folder = next((os.environ[name] for name in names if os.environ.get(name)), str(Path(home, "hub")))
    return expand_home(os.path.expandvars(folder))


def _is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE disables downloads.

    The variables are interpreted like in ``huggingface_hub.constants``.
    """
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in {"1", "ON", "YES", "TRUE"}


def _cache_folder(name: str) -> Path:
    """Return the cache folder that contains all versions of a model."""
    return _hub_cache_dir() / f"models--{name.partition('@')[0].replace('/', '--')}"


def _list_model_files(folder: Path, *, weights: Sequence[str]) -> list[Path]:
    config_files = [folder / name for name in _MODEL_FILES if (folder / name).is_file()]
    weights_files = [folder / name for name in weights if (folder / name).is_file()]
    return [*config_files, *weights_files[:1]]


def _link_to_blob(path: Path, etag: str | None) -> None:
    """Link a downloaded file and its blob to each other if the cache has no symbolic links.

    huggingface_hub moves a new file to ``path``; then the blob is created as a hard link to it. If ``path``
    already existed, huggingface_hub keeps the old file and leaves the download as the blob; then the old file
    is replaced with a hard link to the blob, or a copy of it.

    Args:
        path: Path of the file in the snapshot.
        etag: ETag of the download. If it is a hash, it is the name of the blob; otherwise nothing happens.
    """
    if etag is None or not BLOB_NAME.fullmatch(etag):
        return
    blob = path.parents[2] / "blobs" / etag
    if blob.is_file():
        link_or_copy(blob, path)
    else:
        with suppress(OSError):  # FAT has no hard links either
            blob.hardlink_to(path)
