"""What transformers and torchvision keep in caches of their own, and what vouches for it there.

Both name files by their hashes. In Hugging Face's cache a file of a snapshot is a link to ``blobs/<hash>``,
the SHA-256 of a large file and git's id of a small one
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). PyTorch Hub puts the first eight digits of
the SHA-256 at the end of the name.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

BERT_FILES = ("config.json", "vocab.txt", "tokenizer_config.json", "tokenizer.json")
"""Of a BERT in transformers' format, beside its weights."""

BERT_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""What transformers looks for, in this order."""

# For a torchvision that cannot be looked into: what pretrained=True has meant since 0.13.
_RESNET152 = "https://download.pytorch.org/models/resnet152-394f9c45.pth"
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


def is_whole_bert(folder: Path, *, weights: bool) -> bool:
    """Whether a folder has what transformers cannot do without: configuration, vocabulary, wanted weights."""
    names = {path.name for path in bert_in(folder, weights=weights)}
    vocabulary = names & {"vocab.txt", "tokenizer.json"}
    whole = "config.json" in names and bool(vocabulary)
    return whole and (not weights or bool(names & set(BERT_WEIGHTS)))


def resnet152_url() -> str:
    """From where the installed torchvision gets the weights of ResNet-152 that MMF asks for."""
    spec = find_spec("torchvision")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            text = Path(folder, "models", "resnet.py").read_text(encoding="utf-8")
        except OSError:
            continue
        if found := re.search(r"https://\S+/resnet152-[0-9a-f]{8}\.pth", text):
            return found[0]
    return _RESNET152


def torch_checkpoints() -> Path:
    """Where PyTorch Hub keeps weights."""
    home = os.environ.get("TORCH_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torch"))
    return Path(home, "hub", "checkpoints").expanduser()


def hash_in_name(path: Path) -> str | None:
    """The beginning of the SHA-256 that a file must have by its name, or by that of the blob it links to.

    For git's id of a small blob, there is none.
    """
    blob = path.resolve().name if path.is_symlink() else ""
    if re.fullmatch("[0-9a-f]{64}", blob):
        return blob
    found = _HASH_IN_NAME.search(path.name)
    return found[1] if found else None


def git_id_in_name(path: Path) -> str | None:
    """Git's id that a file must have by the name of the blob it links to."""
    blob = path.resolve().name if path.is_symlink() else ""
    return blob if re.fullmatch("[0-9a-f]{40}", blob) else None
