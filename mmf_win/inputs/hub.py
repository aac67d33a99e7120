"""Models of the Hugging Face Hub, fetched by its own library into its own cache.

It resumes, verifies sizes and hashes, and puts a file in place only when it is whole.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from mmf_win.errors import MmfError
from mmf_win.inputs.caches import BERT_FILES, BERT_WEIGHTS, git_id_in_name, hash_in_name, hub_cache
from mmf_win.integrity import file_digest
from mmf_win.integrity.git_tree import file_blob_id
from mmf_win.upstream.install import require_packages


def download(name: str, *, weights: bool, broken: Iterable[Path] = ()) -> None:
    """Bring a BERT into the cache.

    Args:
        name: such as ``bert-base-uncased`` or ``owner/name``.
        weights: the weights, too, and not only what its tokenizer needs.
        broken: files of it in the cache, of which those that are not what their names say are fetched anew.

    Raises:
        MmfError: it cannot be had, or the library is not installed.
    """
    require_packages("huggingface_hub")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    for path in broken:
        if not _is_right(path):
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def get(file: str) -> bool:
        try:
            hf_hub_download(name, file, cache_dir=hub_cache())
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


def _is_right(path: Path) -> bool:
    """Whether a file of the cache is what the name of its blob says; True where it says nothing."""
    if not path.is_file():
        return False
    if sha256 := hash_in_name(path):
        return file_digest(path).hex().startswith(sha256)
    git_id = git_id_in_name(path)
    return git_id is None or file_blob_id(path.resolve()) == git_id
