"""Getting MMF, and finding the copy that runs.

::

    <tool home>/mmf/
        installed.json          which copy is used; written last
        pypi-1.0.0rc10/         holds the packages mmf and mmf_cli, and the manifest of all files; goes on
                                the worker's sys.path
        .mmfw-staging/          a copy being fetched; renamed once every file is verified
        .mmfw-lock              held by the process that changes any of this

MMF lives beside the environment's packages rather than among them, because its own requirements (torch 1.5
among them) can no longer be met and must not meet pip's resolver.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from mmf_win.console import format_command
from mmf_win.errors import DamagedManifestError, MmfEnvironmentError, UsageError
from mmf_win.files import DISK_FULL_ERRNOS, read_json, write_json
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest
from mmf_win.integrity.verify import find_damage
from mmf_win.paths import constraints_file, expand_home, mmfw_home
from mmf_win.unpacking.staging import fsync_files, open_staging
from mmf_win.upstream.sources import SOURCES, MmfSource
from mmf_win.upstream.versions import read_version

Origin = Literal["pypi", "github", "path", "environment"]

_IMPORT_NAMES = {"pillow": "PIL", "scikit-learn": "sklearn"}
_IMPORTABLE_SUFFIXES = frozenset({".py", ".pyc", ".pyd", ".so"})


@dataclass(frozen=True)
class MmfInstall:
    """A copy of MMF.

    Attributes:
        root: the folder that holds the packages ``mmf`` and ``mmf_cli``.
        version: MMF's own version.
        source: ``pypi`` or ``github`` when mmfw fetched it, ``path`` for a checkout that the user edits,
            ``environment`` for one that Python finds by itself.
        commit: the commit, where it is known.
    """

    root: Path
    version: str
    source: Origin
    commit: str | None = None


def find_mmf() -> MmfInstall:
    """The MMF that runs: what ``mmfw setup`` chose, else one that is importable here.

    Looks at a few files only; :func:`find_changed_files` looks at all of them. Raises MmfError where there is
    none, or it is visibly incomplete.
    """
    installed = selected_mmf() or _find_importable_mmf()
    if installed is None:
        raise MmfEnvironmentError("MMF is not installed", hint="run `mmfw setup`")
    if not _has_mmf(installed.root):
        again = "run `mmfw setup`"
        if installed.source == "path":
            again = f"bring {installed.root} back, or run `mmfw setup --mmf pypi`"
        raise MmfEnvironmentError(f"the MMF in {installed.root} is incomplete", hint=again)
    return installed


def require_mmf() -> MmfInstall:
    """The MMF that runs; an :class:`MmfEnvironmentError` where a worker could not import it, or PyTorch."""
    require_packages("torch", "torchvision", "transformers")
    return find_mmf()


def require_packages(*packages: str, extra: str = "[train]") -> None:
    """Raise an :class:`MmfEnvironmentError` if packages, of an ``extra`` of mmfw, are not installed;
    imports none.
    """
    missing = [package for package in packages if find_spec(_IMPORT_NAMES.get(package, package)) is None]
    if missing:
        # Alone, pip would bring PyTorch for CUDA on any Linux.
        hint = "`mmfw doctor` names the commands that install it" if "torch" in missing else pip_hint(extra)
        raise MmfEnvironmentError(f"{' and '.join(missing)} cannot be found in {sys.prefix}", hint=hint)


def pip_hint(extra: str = "") -> str:
    """How to install what mmfw, or an extra such as ``[train]``, requires, at the tested versions.

    By its name, pip adds what an extra requires to the mmfw that is installed, from wherever that came.
    """
    try:
        importlib.metadata.requires("mmf-win")
        what, where = f"mmf-win{extra}", ""
    except importlib.metadata.PackageNotFoundError:  # it runs from a checkout
        what, where = f".{extra}", " in a clone of mmfw"
    return f"run `{format_command('pip', 'install', '-c', constraints_file(), what)}`{where}"


def selected_mmf() -> MmfInstall | None:
    """What ``mmfw setup`` chose, intact or not; None when it never ran. An MmfError if it cannot tell."""
    try:
        note = read_json(_selection_file())
        return MmfInstall(_mmf_home() / note["root"], note["version"], note["source"], note["commit"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise MmfEnvironmentError(
            f"{_selection_file()} cannot be read: {error}", hint="run `mmfw setup --mmf pypi`"
        ) from error


def has_selected_mmf() -> bool:
    """Whether ``mmfw setup`` ever ran."""
    return _selection_file().exists()


def select_mmf(source_or_checkout: str | None = None, *, force: bool = False) -> MmfInstall:
    """Use a copy, fetching it if it is not there or damaged, or by ``force``.

    What is ``wanted`` is the name of a source or the folder of a checkout, or else what was chosen before.
    Raises MmfError where it cannot be had, and UsageError where the folder is no checkout.
    """
    if source_or_checkout is None:
        current = selected_mmf()
        source_or_checkout = SOURCES[0].name if current is None else current.source
        if current is not None and current.source == "path":
            return use_checkout(find_mmf().root)
    source = next((source for source in SOURCES if source.name == source_or_checkout), None)
    return use_checkout(Path(source_or_checkout)) if source is None else install(source, force=force)


def install(source: MmfSource, *, force: bool = False) -> MmfInstall:
    """Use a copy from ``source``; one that is there and intact is fetched again only by ``force``.

    Until the new copy is verified, the old one stays as it is. A second one of these waits for the first.
    Raises MmfError where it cannot be had, OSError where the disk is full or files are in use.
    """
    # Short, since paths on Windows may be no longer than 260 characters.
    root = _mmf_home() / f"{source.name}-{(source.commit or source.version)[:12]}"
    copy = MmfInstall(root, source.version, source.name, source.commit)
    with open_staging(_require_writable_home(), wait=True) as here:
        if force or find_changed_files(copy) != []:
            manifest = source.fetch(here)
            manifest.save()
            if damage := find_damage(manifest):
                hint = "try again; if that does not help, suspect the disk or a virus scanner"
                raise MmfEnvironmentError(
                    f"MMF {source.version} did not arrive intact ({damage[0]})", hint=hint
                )
            fsync_files([here.new_dir / name for name in manifest.files])
            here.install([(here.new_dir, root)])
        return _save_selection(copy)


def use_checkout(checkout: Path) -> MmfInstall:
    """Use a checkout that the user edits, which is neither copied nor changed; a UsageError if it is none."""
    root = expand_home(checkout).resolve()
    if not _has_mmf(root):
        raise UsageError(
            f"{root} is not a checkout of MMF: it lacks mmf/version.py or mmf_cli/run.py",
            hint="give pypi, github or a clone of https://github.com/facebookresearch/mmf",
        )
    with open_staging(_require_writable_home(), wait=True):
        return _save_selection(MmfInstall(root, read_version(root), "path"))


def find_changed_files(mmf_install: MmfInstall, *, full: bool = False) -> list[str] | None:
    """What is wrong with a copy, a line for each file; None for a checkout, which its user edits.

    A file that was not touched since it was last found intact is read only for a ``full`` look.
    """
    if mmf_install.source not in [source.name for source in SOURCES]:
        return None
    try:
        manifest = Manifest.load(mmf_install.root)
    except DamagedManifestError as error:
        return [str(error)]
    if manifest is None:
        return [f"missing: {MANIFEST_NAME}"]
    if manifest.was_changed:
        return [f"changed: {MANIFEST_NAME}"]
    found = [str(difference) for difference in find_damage(manifest, full=full, title="Verifying MMF")]
    stray = _find_importable_files(mmf_install.root) - manifest.files.keys()
    return found + [f"extra: {name}" for name in sorted(stray)]


def _find_importable_files(root: Path) -> set[str]:
    """Files that Python would import, a stray one in place of the module that was meant."""
    files = (path for path in root.rglob("*") if path.suffix in _IMPORTABLE_SUFFIXES and path.is_file())
    names = {path.relative_to(root).as_posix() for path in files}
    return {name for name in names if "__pycache__" not in name.split("/")}


def _save_selection(mmf_install: MmfInstall) -> MmfInstall:
    # Relative where it can be, so that a moved environment still finds its copy.
    inside = mmf_install.root.parent == _mmf_home()
    note = asdict(mmf_install) | {"root": mmf_install.root.name if inside else str(mmf_install.root)}
    write_json(_selection_file(), note)
    return mmf_install


def _find_importable_mmf() -> MmfInstall | None:
    spec = find_spec("mmf")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent.parent
    return MmfInstall(root, read_version(root), "environment") if _has_mmf(root) else None


def _has_mmf(root: Path) -> bool:
    return (root / "mmf" / "version.py").is_file() and (root / "mmf_cli" / "run.py").is_file()


def _mmf_home() -> Path:
    return mmfw_home() / "mmf"


def _require_writable_home() -> Path:
    home = _mmf_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()  # nothing less tells on every system
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise
        hint = "use a virtual environment of your own, or let MMFW_HOME name a folder of yours"
        raise MmfEnvironmentError(f"{home} cannot be written to: {error.strerror}", hint=hint) from error
    return home


def _selection_file() -> Path:
    return _mmf_home() / "installed.json"
