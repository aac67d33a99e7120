"""Reading and writing torch's files.

MMF writes each checkpoint up to three times, straight to its final names. Here the first name gets the bytes,
under a temporary name at first, and the others become hard links to it, or copies where there are none.

A pickle can run any code, so files are read as tensors and plain values only, unless the user trusts a file.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickletools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch

from mmf_win.console import format_command, format_size
from mmf_win.errors import CheckpointError, ResourceError
from mmf_win.files import atomic_replace, free_space, link_or_copy
from mmf_win.integrity import torch_file
from mmf_win.worker.outcome import UntrustedCheckpointError

# The real ones, whatever replaces them while MMF loads and saves.
_torch_load, _torch_save = torch.load, torch.save
_REFUSED_CLASS = re.compile(r"(?i)unsupported (?:global:? GLOBAL|class|operand) ([\w.]+)")
_PROTOCOL_BY_OPCODE = {str(ord(operand.code)): operand.proto for operand in pickletools.opcodes}
_DAMAGE_MESSAGES = (
    "unexpected EOF",
    "PytorchStreamReader",
)  # what torch says in errors of no kind of its own
_OVERHEAD_BYTES = (
    4 << 20
)  # what a file holds beside tensors: MMF's configuration, the zip's directory and padding
_MIN_FREE_BYTES = 1 << 20  # with less than this left, a write failed because the disk is full


def make_torch_load(*, trust: bool, use_mmap: bool = False) -> Callable[..., Any]:
    """A ``torch.load`` that reads plain values only, or with ``trust`` whatever the file holds.

    With ``mapped`` it reads only what is used, such as the weights, which may be a third of the file. On
    Windows it cannot be replaced meanwhile.
    """

    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", file))
        if use_mmap and name.isprintable() and is_zipfile(name):  # torch takes no name that is not Unicode
            # MMF names the GPU, to which torch would bring all of the file, the optimizer's state included.
            file, kwargs = name, {**kwargs, "mmap": True, "map_location": "cpu"}
        try:
            return _torch_load(file, *args, **{**kwargs, "weights_only": not trust})
        except (OSError, MemoryError):
            raise
        except Exception as error:  # whatever a truncated file leads to, or a class that is gone
            if isinstance(error, RuntimeError) and not any(words in str(error) for words in _DAMAGE_MESSAGES):
                raise
            if not trust and (refused := _REFUSED_CLASS.search(str(error))):
                if (protocol := _PROTOCOL_BY_OPCODE.get(refused[1], 0)) > 2:
                    raise _pickle_protocol_error(protocol, name) from error
                message = f"{name} holds {refused[1]}, and loading that could run any code"
                raise UntrustedCheckpointError(message) from error
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise CheckpointError(f"{name} cannot be loaded ({reason.splitlines()[0]})") from error

    return load


def _pickle_protocol_error(protocol: int, name: str) -> CheckpointError:
    """Return the error that torch reads no file of a pickle protocol safely, and how to save it again."""
    new = str(Path(name).with_suffix(".protocol2.pth"))
    code = f"import torch; torch.save(torch.load({name!r}, map_location='cpu', weights_only=False), {new!r})"
    again = f"`{format_command(sys.executable, '-c', code)}` saves it again; then name {new}"
    saved = f"{name} is saved with pickle protocol {'4 or 5' if protocol == 4 else protocol}"
    message = f"{saved}, and without running code from a file torch reads only protocol 2"
    return CheckpointError(message, hint=f"if you trust where it comes from, {again}")


@contextmanager
def replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside the block, the attribute ``name`` of ``owner`` is ``value``."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _HashingWriter(io.BufferedWriter):
    """A file that hashes what is written, which torch does in order; to read 700 MB again takes longer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("wb", buffering=0))
        self.hash = hashlib.sha256()

    def write(self, piece: Any) -> int:
        self.hash.update(piece)
        return super().write(piece)


class CheckpointWriter:
    """Writes one value under one or more names.

    Attributes:
        sha256: of the bytes that were written, by which a prediction is later known to be of them.
    """

    def __init__(self) -> None:
        self._written_path: Path | None = None
        self.sha256 = ""

    def __call__(self, value: Any, path: Path) -> None:
        """Put ``value`` at ``path``, which is either the old file or the complete new one at any time.

        Raises ResourceError where there is too little space, and nothing is left of the new file, and
        CheckpointError where what was written cannot be read back.
        """
        if self._written_path is not None:
            link_or_copy(self._written_path, path)
            return
        with atomic_replace(path) as temporary:
            with require_disk_space(path, value, "a checkpoint"), _HashingWriter(temporary) as file:
                _torch_save(value, file)
                file.flush()
                os.fsync(file.fileno())
            if damage := torch_file.find_problem(temporary):
                raise CheckpointError(f"{path}: {damage}, just after it was written", hint="check the disk")
            self.sha256 = file.hash.hexdigest()
        self._written_path = path


@contextmanager
def require_disk_space(path: Path, value: Any, description: str, copies: int = 1) -> Iterator[None]:
    """Raise ResourceError where the disk has too little space for the tensors in ``value``.

    Args:
        path: the file that the block writes.
        what: the file, as the message calls it.
        times: how often the tensors are written.
    """
    needed = copies * (tensor_bytes(value) + _OVERHEAD_BYTES)

    def require_free(least: int) -> None:
        free = free_space(path.parent)
        if free is not None and free < least:
            sizes = f"needs {format_size(needed)} of disk space, and {format_size(free)} are free"
            raise ResourceError(f"{path}: {description} {sizes}")

    require_free(needed)
    try:
        yield
    except (OSError, RuntimeError) as error:
        require_free(_MIN_FREE_BYTES)
        if isinstance(error.__context__, OSError):  # torch, closing the file, hides why it cannot
            raise error.__context__ from None
        raise


def tensor_bytes(value: Any) -> int:
    """Bytes of all storages in nested containers, each counted once, as torch saves them."""
    storages = (tensor.untyped_storage() for tensor in iter_tensors(value))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def iter_tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from iter_tensors(entry)
