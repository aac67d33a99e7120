"""The caches of transformers and torchvision: where they are, what is in them, downloads into them.

Both name files by their hashes. In Hugging Face's cache a file of a snapshot is a link to ``blobs/<hash>``,
the SHA-256 of a large file and git's id of a small one
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). PyTorch Hub puts the first eight digits of
the SHA-256 at the end of the name.

Windows without developer mode has only hard links, and the library moves its files into a snapshot. mmfw then
gives them their names among the blobs, too.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mmf_win.errors import MmfError
from mmf_win.files import read_json, replacing, share
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.git_tree import file_blob_id
from mmf_win.upstream.install import require_packages

BERT_FILES = (
    *("config.json", "vocab.txt", "tokenizer_config.json", "tokenizer.json"),
    *("special_tokens_map.json", "added_tokens.json"),
)
"""Of a BERT in transformers' format, beside its weights."""

BERT_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""What transformers looks for, in this order."""

RESNET152 = "https://download.pytorch.org/models/resnet152-394f9c45.pth"
"""From where torchvision has got the weights that MMF asks for, by pretrained=True, since 0.13."""

_BLOB = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})")
_GIT_ID = 40
_NO_COMMIT = "0" * _GIT_ID  # of a copy, which nobody knows the version of
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8})\.[a-z]+$")


def hub_cache() -> Path:
    """Where transformers looks for models of the Hugging Face Hub, as its own variables say."""
    home = os.environ.get("HF_HOME")
    if home is None:
        home = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    names = ("TRANSFORMERS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    chosen = next((os.environ[name] for name in names if os.environ.get(name)), str(Path(home, "hub")))
    return Path(os.path.expandvars(chosen)).expanduser()


def hub_model(name: str) -> Path:
    """The folder in Hugging Face's cache that holds all versions of a model.

    Args:
        name: such as ``bert-base-uncased`` or ``owner/name``.
    """
    return hub_cache() / f"models--{name.replace('/', '--')}"


def hub_snapshot(name: str) -> Path | None:
    """The folder of a model's newest version in Hugging Face's cache; None where it is not there.

    Args:
        name: as for :func:`hub_model`.
    """
    model = hub_model(name)
    try:
        commit = (model / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = model / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def hub_is_offline() -> bool:
    """Whether the variables forbid transformers to download anything (huggingface_hub.constants)."""
    chosen = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return chosen.upper() in {"1", "ON", "YES", "TRUE"}


def bert_in(folder: Path, *, weights: bool) -> list[Path]:
    """The files of a BERT in a folder that transformers would read; the weights last, if they are wanted."""
    there = [folder / name for name in BERT_FILES if (folder / name).is_file()]
    of_weights = (folder / name for name in BERT_WEIGHTS if weights)
    return [*there, *(next(([path] for path in of_weights if path.is_file()), []))]


def is_complete_bert(folder: Path, *, weights: bool) -> bool:
    """Whether a folder has what transformers cannot do without: configuration, vocabulary, wanted weights."""
    names = {path.name for path in bert_in(folder, weights=weights)}
    vocabulary = names & {"vocab.txt", "tokenizer.json"}
    complete = "config.json" in names and bool(vocabulary)
    return complete and (not weights or bool(names & set(BERT_WEIGHTS)))


def is_bert(folder: Path) -> bool:
    """Whether the model in a folder is a BERT, by its configuration."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "bert"


def model_in(place: Path, name: str, *, weights: bool) -> Path | None:
    """The folder below ``place`` with a complete BERT of this name; None where there is none.

    Args:
        place: the model's own folder or the one above it; Hugging Face's home, its cache or a model in it.
        name: as for :func:`hub_model`.
        weights: whether its weights are wanted, too.
    """
    own = name.rpartition("/")[2]
    cached = hub_model(name).name
    folders = [place] if own == place.name or cached in place.parts else [place / own, place / name]
    for model in (place, place / cached, place / "hub" / cached):
        folders += (model / "snapshots").glob("*") if model.name == cached else ()
    return next((folder for folder in folders if is_complete_bert(folder, weights=weights)), None)


def copy_model(source: Path, name: str) -> None:
    """Copy the BERT in a folder into Hugging Face's cache, in place of what is there of it."""
    cached = hub_model(name)
    target = hub_snapshot(name) or cached / "snapshots" / _NO_COMMIT
    for folder in (target, cached / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    for path in bert_in(source, weights=True):
        with replacing(target / path.name) as temporary:
            shutil.copyfile(path, temporary)
    with replacing(cached / "refs" / "main") as temporary:
        temporary.write_text(target.name, encoding="utf-8")


def torch_checkpoints() -> Path:
    """Where PyTorch Hub keeps weights."""
    home = os.environ.get("TORCH_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torch"))
    return Path(home, "hub", "checkpoints").expanduser()


def hash_in_name(path: Path) -> str | None:
    """What a file's SHA-256, or its id in git, begins with by its name or that of the blob it links to."""
    names = [path.resolve().name]
    if path.is_file() and not path.is_symlink():
        blobs = (path.parent.parent.parent / "blobs").glob("*")
        names = [blob.name for blob in blobs if blob.is_file() and blob.samefile(path)]
    found = next(filter(None, map(_BLOB.fullmatch, names)), None) or _HASH_IN_NAME.search(path.name)
    return found[1] if found else None


def contradicts_hash(path: Path, sha256: str) -> bool:
    """Whether a file with this SHA-256 is not what its known hash says; False where none is known.

    Raises:
        OSError: it cannot be read.
    """
    known = hash_in_name(path)
    if known is None:
        return False
    content = file_blob_id(path.resolve()) if len(known) == _GIT_ID else sha256
    return not content.startswith(known)


def download_model(name: str, *, weights: bool, damaged: Iterable[Path] = ()) -> None:
    """Download a BERT into Hugging Face's cache, by its own library.

    That resumes, verifies sizes and hashes, and puts a file in place only when it is complete.

    Args:
        name: such as ``bert-base-uncased`` or ``owner/name``.
        weights: the weights, too, and not only what its tokenizer needs.
        damaged: its files in the cache, some of which are damaged: those are replaced that are not what
            their hashes say, or all if no hash is known.

    Raises:
        MmfError: it cannot be downloaded, or the library is not installed.
    """
    require_packages("huggingface_hub")
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every retry
    there = [path for path in damaged if path.is_file()]
    wrong = [path for path in there if contradicts_hash(path, file_digest(path).hex())]
    replaced = {path.name for path in wrong or there}

    def get(file: str) -> bool:
        try:
            path = Path(hf_hub_download(name, file, cache_dir=hub_cache(), force_download=file in replaced))
            if not path.is_symlink():
                url = hf_hub_url(name, file, revision=path.parent.name)
                _link_to_blob(path, get_hf_file_metadata(url).etag)
        except LocalEntryNotFoundError:  # nobody answered; it counts as not found, too
            raise
        except EntryNotFoundError:
            return False
        return True

    try:
        found = {file for file in BERT_FILES if get(file)}
        if weights and not any(get(file) for file in BERT_WEIGHTS):
            raise MmfError(f"{name}: the Hugging Face Hub has no weights of it")
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        reason = " ".join(str(error).split("\n")[0].split())
        raise MmfError(
            f"cannot download {name} from the Hugging Face Hub: {reason}",
            hint="check the connection (HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror), or give the "
            "configuration a folder that holds the model",
        ) from error
    if not {"config.json"} <= found or not found & {"vocab.txt", "tokenizer.json"}:
        raise MmfError(f"{name}: the Hugging Face Hub has no configuration or vocabulary of it")


def _link_to_blob(path: Path, told: str | None) -> None:
    """Finish the download of a file of a snapshot where there are no symbolic links, by a hard link.

    Args:
        path: the file. Where there was one before, it is still that one: the library replaces only links, and
            leaves what it has downloaded among the blobs.
        told: the hash that the Hub tells.
    """
    if told is None or not _BLOB.fullmatch(told):
        return
    blob = path.parents[2] / "blobs" / told
    if blob.is_file():
        share(blob, path)
    else:
        with suppress(OSError):  # FAT has none of these links either
            blob.hardlink_to(path)
