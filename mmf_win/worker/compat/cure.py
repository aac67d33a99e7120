"""What a cure is, and how one is written with as few words as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.importing import Edit

RC10 = frozenset({"1.0.0rc10"})
RC12 = frozenset({"1.0.0rc12"})
BOTH = RC10 | RC12


@dataclass(frozen=True)
class Context:
    """The MMF that is about to be imported.

    Attributes:
        mmf_root: the folder that holds the packages ``mmf`` and ``mmf_cli``.
        mmf_version: as ``mmf/version.py`` has it.
    """

    mmf_root: Path
    mmf_version: str

    def source(self, module: str) -> str:
        """The source of one of MMF's modules; empty where there is none."""
        return importing.source(module, self.mmf_root)


@dataclass(frozen=True)
class Cure:
    """One thing that an unmodified MMF needs in order to import and run today.

    Attributes:
        name: short, for a table.
        cures: what breaks without it, and where, in one sentence.
        mmf: the versions of MMF that it is for.
        library: the other side of the matter, such as ``transformers >= 4.0``.
        needed: whether the MMF and the libraries that are installed really need it; imports nothing heavy.
        apply: makes the change, before MMF is imported.
    """

    name: str
    cures: str
    mmf: frozenset[str]
    library: str
    needed: Callable[[Context], bool]
    apply: Callable[[Context], None]

    def active(self, context: Context) -> bool:
        """Whether this cure is for this MMF and needed here."""
        return context.mmf_version in self.mmf and self.needed(context)


def by_editing(
    *edits: Edit,
    name: str,
    cures: str,
    mmf: frozenset[str],
    library: str,
    when: Callable[[], bool] = lambda: True,
) -> Cure:
    """A cure that only replaces words of MMF's source; needed while MMF has them and ``when`` says so."""

    def needed(context: Context) -> bool:
        return when() and any(edit.old in context.source(edit.module) for edit in edits)

    def apply(context: Context) -> None:
        for edit in edits:
            if edit.old in context.source(edit.module):
                importing.edit(edit)

    return Cure(name, cures, mmf, library, needed, apply)


def missing(package: str) -> Callable[[], bool]:
    """Whether a package is not installed, as a question to ask later."""
    return lambda: find_spec(package) is None
