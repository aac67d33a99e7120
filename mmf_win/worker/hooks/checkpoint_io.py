"""Input and output of torch files.

MMF writes each checkpoint up to three times, directly to its final names. Here the content is written once,
to a temporary file that is renamed; the other names become hard links to it, or copies where hard links are
not supported.

A pickle can run arbitrary code, so only tensors and plain values are read unless the user trusts the file.
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

# The original functions, which are replaced while MMF loads and saves.
_torch_load, _torch_save = torch.load, torch.save
_REFUSED_CLASS = re.compile(r"(?i)unsupported (?:global:? GLOBAL|class|operand) ([\w.]+)")
_PROTOCOL_BY_OPCODE = {str(ord(operand.code)): operand.proto for operand in pickletools.opcodes}
_DAMAGE_MESSAGES = ("unexpected EOF", "PytorchStreamReader")  # messages of torch's plain RuntimeErrors
_OVERHEAD_BYTES = 4 << 20  # besides tensors: MMF's configuration, the zip's directory and padding
_MIN_FREE_BYTES = 1 << 20  # a write that failed with less free space failed because the disk is full


def make_torch_load(*, trust: bool, use_mmap: bool = False) -> Callable[..., Any]:
    """Return a replacement of ``torch.load`` that reads plain values only, unless the file is trusted.

    Args:
        trust: Load any class, which may run code.
        use_mmap: Read only the parts that are used, such as the weights, which may be a third of the file. On
            Windows, the file cannot be replaced while it is mapped.

    Returns:
        A function with the arguments of ``torch.load``. It raises ``CheckpointError`` for a damaged file and
        ``UntrustedCheckpointError`` for one with other classes.
    """

    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", file))
        if use_mmap and name.isprintable() and is_zipfile(name):  # torch only maps files with Unicode names
            # MMF passes the GPU as map_location, which would copy the whole file to it.
            file, kwargs = name, {**kwargs, "mmap": True, "map_location": "cpu"}
        try:
            return _torch_load(file, *args, **{**kwargs, "weights_only": not trust})
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a truncated file or a class that does not exist any more
            if isinstance(error, RuntimeError) and not any(text in str(error) for text in _DAMAGE_MESSAGES):
                raise
            if not trust and (refused := _REFUSED_CLASS.search(str(error))):
                if (protocol := _PROTOCOL_BY_OPCODE.get(refused[1], 0)) > 2:
                    raise _pickle_protocol_error(protocol, name) from error
                message = f"{name} contains {refused[1]}; loading it could run arbitrary code"
                raise UntrustedCheckpointError(message) from error
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise CheckpointError(f"{name} cannot be loaded ({reason.splitlines()[0]})") from error

    return load


def _pickle_protocol_error(protocol: int, name: str) -> CheckpointError:
    """Return the error for a pickle protocol that torch cannot read safely; its hint converts the file."""
    target = str(Path(name).with_suffix(".protocol2.pth"))
    code = f"import torch; torch.save(torch.load({name!r}, map_location='cpu', weights_only=False), {target!r})"
    command = format_command(sys.executable, "-c", code)
    message = (
        f"{name} uses pickle protocol {'4 or 5' if protocol == 4 else protocol}; without running code from "
        "the file, torch only reads protocol 2"
    )
    hint = f"if you trust its source, run `{command}` to convert it, then use {target}"
    return CheckpointError(message, hint=hint)


@contextmanager
def replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of an object inside the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _HashingWriter(io.BufferedWriter):
    """File that hashes what torch writes in order, which is faster than reading 700 MB again."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("wb", buffering=0))
        self.hash = hashlib.sha256()

    def write(self, piece: Any) -> int:
        self.hash.update(piece)
        return super().write(piece)


class CheckpointWriter:
    """Writer of one value under one or more names.

    Attributes:
        sha256: SHA-256 of the written bytes, which identifies the checkpoint of a prediction.
    """

    def __init__(self) -> None:
        self._written_path: Path | None = None
        self.sha256 = ""

    def __call__(self, value: Any, path: Path) -> None:
        """Write ``value`` to ``path``, which is either the old or the complete new file at any time.

        Raises:
            ResourceError: There is too little disk space; nothing of the new file remains.
            CheckpointError: The written file cannot be read back.
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
                raise CheckpointError(f"{path}: damaged while being written ({damage})", hint="check the disk")
            self.sha256 = file.hash.hexdigest()
        self._written_path = path


@contextmanager
def require_disk_space(path: Path, value: Any, description: str, copies: int = 1) -> Iterator[None]:
    """Raise an error if there is too little disk space for the tensors in ``value``.

    This is checked before the block and if the block fails.

    Args:
        path: The file that the block writes.
        value: Nested containers with the tensors.
        description: The kind of file as named in the message, such as "a checkpoint".
        copies: How often the tensors are written.

    Raises:
        ResourceError: There is too little space.
        OSError: The block failed for another reason, which torch hides when it closes the file.
        RuntimeError: The block failed for another reason.
    """
    needed = copies * (tensor_bytes(value) + _OVERHEAD_BYTES)

    def require_free(min_bytes: int) -> None:
        free = free_space(path.parent)
        if free is not None and free < min_bytes:
            sizes = f"needs {format_size(needed)} of disk space, but only {format_size(free)} are free"
            raise ResourceError(f"{path}: {description} {sizes}")

    require_free(needed)
    try:
        yield
    except (OSError, RuntimeError) as error:
        require_free(_MIN_FREE_BYTES)
        if isinstance(error.__context__, OSError):  # torch hides the cause when it closes the file
            raise error.__context__ from None
        raise


def tensor_bytes(value: Any) -> int:
    """Return the total bytes of all storages in nested containers; shared storages count once."""
    storages = (tensor.untyped_storage() for tensor in iter_tensors(value))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def iter_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from iter_tensors(entry)
