"""What a patch is: the problem that it solves, where it is needed, and the change that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.importing import Callback, Edit

RC10 = frozenset({"1.0.0rc10"})
RC12 = frozenset({"1.0.0rc12"})
BOTH = RC10 | RC12


@dataclass(frozen=True)
class Context:
    """The MMF that is about to be imported, and what for.

    Attributes:
        mmf_root: the folder that holds the packages ``mmf`` and ``mmf_cli``.
        mmf_version: as ``mmf/version.py`` has it.
        detect_anomaly: the user asked for autograd's anomaly detection.
    """

    mmf_root: Path
    mmf_version: str
    detect_anomaly: bool = False

    def source(self, module: str) -> str:
        """The source of one of MMF's modules; empty where there is none."""
        return importing.source(module, self.mmf_root)


Needed = Callable[[Context], bool]


@dataclass(frozen=True)
class Patch:
    """One thing that an unmodified MMF needs in order to import and run today.

    Attributes:
        name: short, for a table.
        problem: what goes wrong without it, and where, in one sentence.
        mmf: the versions of MMF that it is for; by default, all of them.
        library: the other side of the matter, such as ``transformers >= 4.0``.
        edits: replacements in MMF's source. Where MMF has none of the text, the patch is not needed.
        after_import: by the name of a module, a function that changes it once it is imported.
        before_import: makes a change before MMF is imported.
        needed: whether the MMF and the libraries that are installed really need it.
    """

    name: str
    problem: str
    mmf: frozenset[str] = BOTH
    library: str = "any"
    edits: tuple[Edit, ...] = ()
    after_import: Mapping[str, Callback] = field(default_factory=dict)
    before_import: Callable[[], None] | None = None
    needed: Needed = lambda context: True

    def active(self, context: Context) -> bool:
        """Whether this patch is for this MMF and needed here."""
        if context.mmf_version not in self.mmf or (self.edits and not self._edits_for(context)):
            return False
        return self.needed(context)

    def apply(self, context: Context) -> None:
        """Make the change, or queue it for the import of the module."""
        if self.before_import is not None:
            self.before_import()
        for edit in self._edits_for(context):
            importing.edit(edit)
        for module, change in self.after_import.items():
            importing.after_import(module, change)

    def _edits_for(self, context: Context) -> list[Edit]:
        return [edit for edit in self.edits if edit.old in context.source(edit.module)]


def missing(package: str) -> Needed:
    """Needed where ``package`` is not installed."""
    return lambda context: find_spec(package) is None


def contains(module: str, text: str) -> Needed:
    """Needed while the source of MMF's ``module`` contains ``text``."""
    return lambda context: text in context.source(module)


def lacks(module: str, text: str) -> Needed:
    """Needed where the source of a library's ``module`` no longer contains ``text``."""
    return lambda context: text not in importing.source(module)
