"""Definition of patches, which change a module when it is imported, without changing its file.

Patches of MMF are preferably an :class:`Edit`: the change is easy to read, and it does not apply if the user
has already changed that text. :func:`call_after_import` calls a function with the imported module.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER, decode_source, find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from mmf_win.files import write_bytes
from mmf_win.paths import mmfw_home

RC10 = frozenset({"1.0.0rc10"})
RC12 = frozenset({"1.0.0rc12"})

_DIGEST_BYTES = hashlib.sha256().digest_size

Callback = Callable[[ModuleType], None]


@dataclass(frozen=True)
class Edit:
    """Text to replace everywhere in a module's source when it is compiled.

    Attributes:
        module: Dotted name of the module.
        old: Text in the file.
        new: Text to compile instead, with the same number of lines, so that tracebacks show correct lines.
        names: Objects that ``new`` refers to; added to the module's globals before it runs.
    """

    module: str
    old: str
    new: str
    names: Mapping[str, object] = field(default_factory=dict)


def single_edit(module: str, old: str, new: str, **names: object) -> tuple[Edit, ...]:
    """Return the edits of a patch with only one edit."""
    return (Edit(module, old, new, names),)


@dataclass(frozen=True)
class Patch:
    """One change that an unmodified MMF needs to run today, or to be fast.

    Attributes:
        name: Short name for a table.
        problem: What goes wrong without it, and where, in one sentence.
        mmf_versions: Versions of MMF that need it.
        library: Library or system that causes the problem, such as ``transformers >= 4.0``.
        edits: Edits of MMF or a library; if none of the texts occurs, the patch is not needed.
        after_import: Module name → function that is called with the module after its import.
        is_needed: Returns whether the installed libraries need it.
        is_optimization: Whether it only makes MMF faster.
    """

    name: str
    problem: str
    mmf_versions: frozenset[str] = RC10 | RC12
    library: str = "any"
    edits: tuple[Edit, ...] = ()
    after_import: Mapping[str, Callback] = field(default_factory=dict)
    is_needed: Callable[[], bool] = lambda: True
    is_optimization: bool = False

    def is_active(self, mmf_root: Path, mmf_version: str) -> bool:
        """Return whether this MMF and the installed libraries need the patch."""
        if mmf_version not in self.mmf_versions or (self.edits and not self._edits_for(mmf_root)):
            return False
        return self.is_needed()

    def apply(self, mmf_root: Path) -> None:
        """Register the edits, and call the functions of imported modules or register them, too."""
        for edit in self._edits_for(mmf_root):
            _finder.edits.setdefault(edit.module, []).append(edit)
        for module, change in self.after_import.items():
            call_after_import(module, change)

    def _edits_for(self, mmf_root: Path) -> list[Edit]:
        return [edit for edit in self.edits if edit.old in read_source(edit.module, mmf_root)]


def source_lacks(module: str, text: str) -> Callable[[], bool]:
    """Return a function for ``is_needed`` that tests whether a library's source does not contain ``text``."""
    return lambda: text not in read_source(module, Path())


def call_after_import(module: str, callback: Callback) -> None:
    """Call ``callback(module)`` after the import of ``module``, or now if it is already imported."""
    if module in sys.modules:
        callback(sys.modules[module])
    else:
        _finder.callbacks.setdefault(module, []).append(callback)


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator that replaces the function ``owner.name``.

    The new function gets the old one as its first argument.

    Args:
        owner: Module or class.
        name: Name of the function or method.

    Returns:
        The decorator.
    """
    original = getattr(owner, name)

    def replace(function: Callable[..., Any]) -> None:
        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, wrapper)

    return replace


def load_or_compute(folder_name: str, key: object, compute: Callable[[], Any]) -> Any:
    """Return the result of a function from a file cache, or call the function and cache its result.

    Args:
        folder_name: Folder of the cache in mmfw's home.
        key: Everything that the result depends on; its ``repr`` identifies the entry.
        compute: Returns the result, which ``marshal`` must be able to store, such as a code object.

    Returns:
        The result.
    """
    full_key = repr((MAGIC_NUMBER, sys.flags.optimize, key)).encode()
    path = mmfw_home() / folder_name / hashlib.sha256(full_key).hexdigest()[:32]
    with suppress(OSError):
        content = path.read_bytes()
        digest, stored = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(stored).digest() == digest:
            return marshal.loads(stored)
    value = compute()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = marshal.dumps(value)
        write_bytes(path, hashlib.sha256(content).digest() + content)
    return value


def source_path(module: str, root: Path) -> Path | None:
    """Return the source file of a module whose top-level package is in ``root``, or None."""
    base_path = root.joinpath(*module.split("."))
    candidates = (base_path / "__init__.py", base_path.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


def read_source(module: str, mmf_root: Path) -> str:
    """Return the source of a module of MMF or a library without importing it; empty if it is missing."""
    top = module.partition(".")[0]
    spec = None if top.startswith("mmf") else find_spec(top)
    path = source_path(module, Path(spec.origin).parents[1] if spec and spec.origin else mmf_root)
    return path.read_text(encoding="utf-8") if path else ""


class _PatchingLoader(SourceFileLoader):
    """Loader that compiles a module with its edits, runs it, and calls the registered functions."""

    def __init__(self, name: str, path: str, edits: Sequence[Edit], callbacks: Sequence[Callback]) -> None:
        super().__init__(name, path)
        self._edits, self._callbacks = edits, callbacks

    def get_code(self, fullname: str) -> CodeType | None:
        if not self._edits:
            return super().get_code(fullname)
        # Python's bytecode cache is bypassed, since it has the unchanged code.
        path = self.get_filename(fullname)
        text = decode_source(self.get_data(path))
        for edit in self._edits:
            text = text.replace(edit.old, edit.new)
        # This cache replaces ``__pycache__`` for the changed source.
        code: CodeType = load_or_compute("bytecode", (path, text), lambda: self.source_to_code(text, path))
        return code

    def exec_module(self, module: ModuleType) -> None:
        for edit in self._edits:
            vars(module).update(edit.names)
        super().exec_module(module)
        for callback in self._callbacks:
            callback(module)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.edits: dict[str, list[Edit]] = {}
        self.callbacks: dict[str, list[Callback]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        edits, callbacks = self.edits.get(name, []), self.callbacks.get(name, [])
        if not edits and not callbacks:
            return None
        other_finders = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in other_finders)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.origin is not None:
            spec.loader = _PatchingLoader(name, spec.origin, edits, callbacks)
        return spec


_finder = _Finder()


def install_finder() -> None:
    """Install the import finder that applies patches before all other finders."""
    sys.meta_path.insert(0, _finder)
