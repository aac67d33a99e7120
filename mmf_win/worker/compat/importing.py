"""Changes what a module becomes when it is imported, without touching its file.

Three means, from the smallest to the largest, all queued before the module is imported:

* :class:`Edit` replaces text in a module's source as it is compiled. Line numbers stay, so that
  tracebacks still point at the right line of the file. This is the means of choice inside MMF: the change
  reads as what it is, and it does not apply where somebody has already changed that text.
* :func:`after_import` calls a function with the module once it is there.
* :func:`alias` gives a module that moved its old name back.

All three use finders on ``sys.meta_path``, which ignore modules that nobody queued anything for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import decode_source, find_spec
from pathlib import Path
from types import CodeType, ModuleType

Callback = Callable[[ModuleType], None]


@dataclass(frozen=True)
class Edit:
    """Text to replace in a module's source, wherever it occurs.

    Attributes:
        module: dotted name.
        old: what the file holds.
        new: what is compiled instead; it must have as many lines.
        names: objects that ``new`` refers to, put among the module's globals before it runs.
    """

    module: str
    old: str
    new: str
    names: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.old.count("\n") != self.new.count("\n"):
            raise ValueError(f"the edit of {self.module} would shift its lines")


def edit(change: Edit) -> None:
    """Queue an edit.

    Raises:
        RuntimeError: the module is already imported.
    """
    if change.module in sys.modules:
        raise RuntimeError(f"{change.module} was imported before mmfw could change it")
    edits = _finder.edits.setdefault(change.module, [])
    if change not in edits:
        edits.append(change)


def after_import(module: str, callback: Callback) -> None:
    """Call ``callback(module)`` right after the import of ``module``; now if it is imported already."""
    if module in sys.modules:
        callback(sys.modules[module])
    else:
        _finder.callbacks.setdefault(module, []).append(callback)


def alias(target_of: Callable[[str], str | None]) -> None:
    """Ask ``target_of`` for the new name of a module that no finder has; it may return None."""
    sys.meta_path.append(_Aliases(target_of))


def source_path(module: str, root: Path | None = None) -> Path | None:
    """The source file of a module, found without importing anything; None where there is none.

    Args:
        module: dotted name.
        root: the folder that holds its top package; without it, wherever ``sys.path`` has it.
    """
    top, *rest = module.split(".")
    if root is None:
        spec = find_spec(top)
        if spec is None or not spec.submodule_search_locations:
            return None
        folder = Path(next(iter(spec.submodule_search_locations)))
    else:
        folder = root / top
    inside = folder.joinpath(*rest)
    candidates = (inside / "__init__.py", inside.with_name(inside.name + ".py"))
    return next((path for path in candidates if path.is_file()), None)


def source(module: str, root: Path | None = None) -> str:
    """The source of a module as text, without importing anything; empty where there is none."""
    path = source_path(module, root)
    return path.read_text(encoding="utf-8") if path else ""


class _ChangingLoader(SourceFileLoader):
    """Compiles a module's source with its edits, runs it, and makes the calls that were queued for it."""

    def __init__(self, name: str, path: str, edits: Sequence[Edit], callbacks: Sequence[Callback]) -> None:
        super().__init__(name, path)
        self._edits, self._callbacks = edits, callbacks

    def get_code(self, fullname: str) -> CodeType | None:
        if not self._edits:
            return super().get_code(fullname)
        # Bytecode caches are bypassed, since they hold what the file has.
        path = self.get_filename(fullname)
        text = decode_source(self.get_data(path))
        for change in self._edits:
            text = text.replace(change.old, change.new)
        return self.source_to_code(text.encode(), path)

    def exec_module(self, module: ModuleType) -> None:
        for change in self._edits:
            vars(module).update(change.names)
        super().exec_module(module)
        for callback in self._callbacks:
            callback(module)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.edits: dict[str, list[Edit]] = {}
        self.callbacks: dict[str, list[Callback]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        edits, callbacks = self.edits.get(fullname, []), self.callbacks.get(fullname, [])
        if not edits and not callbacks:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.origin is not None:
            spec.loader = _ChangingLoader(fullname, spec.origin, edits, callbacks)
        return spec


class _Aliases(MetaPathFinder, Loader):
    """A finder at the end of ``sys.meta_path``, so that it is only asked for what does not exist."""

    def __init__(self, target_of: Callable[[str], str | None]) -> None:
        self._target_of = target_of

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if self._target_of(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        # The import system hands out whatever is in sys.modules after this call; a module given out by
        # create_module would have its own __spec__ overwritten by the alias's.
        name = self._target_of(module.__name__)
        assert name is not None
        sys.modules[module.__name__] = importlib.import_module(name)


_finder = _Finder()


def activate() -> None:
    """Put the finder of changes first. Idempotent."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
