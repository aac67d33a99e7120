"""What a patch is, and how it changes what a module becomes when it is imported, without touching its file.

An :class:`Edit` is the means of choice inside MMF: the change reads as what it is, and it does not apply
where somebody has already changed that text. :func:`call_after_import` calls a function with the module.
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
    """Text to replace in a module's source as it is compiled, wherever it occurs.

    Attributes:
        module: dotted name.
        old: what the file holds.
        new: what is compiled instead; it has as many lines, so that tracebacks point at the right ones.
        names: objects that ``new`` refers to, put among the module's globals before it runs.
    """

    module: str
    old: str
    new: str
    names: Mapping[str, object] = field(default_factory=dict)


def single_edit(module: str, old: str, new: str, **names: object) -> tuple[Edit, ...]:
    """The edits of a patch that needs one."""
    return (Edit(module, old, new, names),)


@dataclass(frozen=True)
class Patch:
    """One thing that an unmodified MMF needs in order to import and run today, or to be fast.

    Attributes:
        name: short, for a table.
        problem: what goes wrong without it, and where, in one sentence.
        mmf: the versions of MMF that it is for.
        library: the other side of the matter, such as ``transformers >= 4.0``.
        edits: in MMF's source, or in a library's; where there is none of the text, it is not needed.
        after_import: by the name of a module, a function that is called with it once it is imported.
        needed: whether the libraries that are installed need it.
        speed: it only makes MMF faster.
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
        """Whether this patch is for this MMF and needed here."""
        if mmf_version not in self.mmf_versions or (self.edits and not self._edits_for(mmf_root)):
            return False
        return self.is_needed()

    def apply(self, mmf_root: Path) -> None:
        """Make the change, or queue it for the import of the module."""
        for each in self._edits_for(mmf_root):
            _finder.edits.setdefault(each.module, []).append(each)
        for module, change in self.after_import.items():
            call_after_import(module, change)

    def _edits_for(self, mmf_root: Path) -> list[Edit]:
        return [each for each in self.edits if each.old in read_source(each.module, mmf_root)]


def source_lacks(module: str, text: str) -> Callable[[], bool]:
    """Needed where the source of a library's ``module`` no longer contains ``text``."""
    return lambda: text not in read_source(module, Path())


def call_after_import(module: str, callback: Callback) -> None:
    """Call ``callback(module)`` right after the import of ``module``; now if it is imported already."""
    if module in sys.modules:
        callback(sys.modules[module])
    else:
        _finder.callbacks.setdefault(module, []).append(callback)


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Replace the function ``owner.name`` by the decorated one, which gets it as its first argument."""
    original = getattr(owner, name)

    def replace(function: Callable[..., Any]) -> None:
        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, wrapper)

    return replace


def load_or_compute(folder_name: str, key: object, compute: Callable[[], Any]) -> Any:
    """What ``make`` returns, such as code: something that ``marshal`` can store.

    It is made once for each ``repr`` of ``of``, which is all that it depends on, and kept in mmfw's own
    folder ``kind``.
    """
    depends = repr((MAGIC_NUMBER, sys.flags.optimize, key)).encode()
    path = mmfw_home() / folder_name / hashlib.sha256(depends).hexdigest()[:32]
    with suppress(OSError):
        content = path.read_bytes()
        digest, found = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(found).digest() == digest:
            return marshal.loads(found)
    made = compute()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = marshal.dumps(made)
        write_bytes(path, hashlib.sha256(content).digest() + content)
    return made


def source_path(module: str, root: Path) -> Path | None:
    """The source file of a module, whose top package is in ``root``; None where there is none."""
    inside = root.joinpath(*module.split("."))
    candidates = (inside / "__init__.py", inside.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


def read_source(module: str, mmf_root: Path) -> str:
    """The source of a module of MMF or a library, without importing it; empty where there is none."""
    top = module.partition(".")[0]
    spec = None if top.startswith("mmf") else find_spec(top)
    path = source_path(module, Path(spec.origin).parents[1] if spec and spec.origin else mmf_root)
    return path.read_text(encoding="utf-8") if path else ""


class _PatchingLoader(SourceFileLoader):
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
        # What Python keeps of a file as it is in ``__pycache__``, we keep of one that was changed.
        made: CodeType = load_or_compute("bytecode", (path, text), lambda: self.source_to_code(text, path))
        return made

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
            spec.loader = _PatchingLoader(fullname, spec.origin, edits, callbacks)
        return spec


_finder = _Finder()


def install_finder() -> None:
    """Put the finder of changes first."""
    sys.meta_path.insert(0, _finder)
