"""Loads the files of torch's that MMF asks for: tensors and plain values only, unless the user trusts a file.

A pickle can run any code. Newer versions of torch refuse classes that they do not know unless told otherwise,
older ones do not; here all of them refuse.
"""

from __future__ import annotations

import os
import pickle
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from mmf_win.errors import CheckpointError

_load = torch.load  # the real one, whoever stands in for it while MMF loads
_REFUSED = re.compile(r"Unsupported (?:global: GLOBAL|class|operand) ([\w.]+)")
_DAMAGED = ("unexpected EOF", "PytorchStreamReader")  # what torch says in errors of no kind of its own


@contextmanager
def loading(*, trust: bool) -> Iterator[None]:
    """Inside the block, ``torch.load`` reads as described above.

    Args:
        trust: load whatever the file holds, as the user asked for.
    """

    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", file))
        try:
            return _load(file, *args, **{**kwargs, "weights_only": not trust})
        except pickle.UnpicklingError as error:
            if not trust and (refused := _REFUSED.search(str(error))):
                raise CheckpointError(
                    f"{name} holds {refused[1]}, and loading that could run any code",
                    hint="if you trust where the file comes from, repeat the command with --trust",
                ) from error
            _refuse(name, error)
        # A class that is gone or has changed, or a file that is cut off.
        except (ImportError, AttributeError, TypeError, LookupError, EOFError, struct.error) as error:
            _refuse(name, error)
        except RuntimeError as error:
            if not any(words in str(error) for words in _DAMAGED):
                raise
            _refuse(name, error)

    torch.load = load  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.load = _load


def _refuse(name: str, error: Exception) -> NoReturn:
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    raise CheckpointError(f"{name} cannot be loaded ({reason.splitlines()[0]})") from error
