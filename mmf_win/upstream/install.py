"""Install MMF and find the copy that is used.

::

    <tool home>/mmf/
        installed.json          the selected copy; written last
        pypi-1.0.0rc10/         the packages mmf and mmf_cli with a manifest of all files; added to the
                                worker's sys.path
        .mmfw-staging/          a copy being fetched; renamed once every file is verified
        .mmfw-lock              locked by the process that changes this folder

MMF is installed next to the environment's packages and not among them: its own requirements (torch 1.5, for
example) can no longer be met and must not reach pip's resolver.
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
        root: Folder of the packages ``mmf`` and ``mmf_cli``.
        version: MMF's version.
        source: ``pypi`` or ``github`` if mmfw fetched it, ``path`` for the user's checkout, ``environment``
            for a copy that Python finds by itself.
        commit: Git commit, if known.
    """

    root: Path
    version: str
    source: Origin
    commit: str | None = None


def find_mmf() -> MmfInstall:
    """Return the MMF in use: the copy selected by ``mmfw setup``, or else an importable one.

    Checks only a few files; :func:`find_changed_files` checks all of them.

    Raises:
        MmfEnvironmentError: There is no MMF, or it is visibly incomplete.
    """
    installed = read_selected_mmf() or _find_importable_mmf()
    if installed is None:
        raise MmfEnvironmentError("MMF is not installed", hint="run `mmfw setup`")
    if not _has_mmf(installed.root):
        hint = "run `mmfw setup`"
        if installed.source == "path":
            hint = f"restore {installed.root}, or run `mmfw setup --mmf pypi`"
        raise MmfEnvironmentError(f"the MMF in {installed.root} is incomplete", hint=hint)
    return installed


def require_mmf() -> MmfInstall:
    """Return the MMF in use.

    Raises:
        MmfEnvironmentError: A worker could not import MMF or PyTorch.
    """
    require_packages("torch", "torchvision", "transformers")
    return find_mmf()


def require_packages(*packages: str, extra: str = "[train]") -> None:
    """Check, without importing them, that packages are installed.

    Args:
        packages: Names of packages.
        extra: Extra of mmfw that installs them.

    Raises:
        MmfEnvironmentError: A package is not installed.
    """
    missing = [package for package in packages if find_spec(_IMPORT_NAMES.get(package, package)) is None]
    if missing:
        # Without an index URL, pip installs PyTorch for CUDA on any Linux.
        hint = "run `mmfw doctor` for the commands that install it" if "torch" in missing else pip_hint(extra)
        raise MmfEnvironmentError(f"not installed in {sys.prefix}: {', '.join(missing)}", hint=hint)


def pip_hint(extra: str = "") -> str:
    """Return the hint that installs the requirements of mmfw, or of an extra, at the tested versions.

    Given the name of mmfw, pip adds the requirements of an extra to the installed copy, whatever its origin.
    """
    try:
        importlib.metadata.requires("mmf-win")
        requirement, location = f"mmf-win{extra}", ""
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        requirement, location = f".{extra}", " in a clone of mmfw"
    return f"run `{format_command('pip', 'install', '-c', constraints_file(), requirement)}`{location}"


def read_selected_mmf() -> MmfInstall | None:
    """Return the copy selected by ``mmfw setup``, intact or not, or ``None`` if it never ran.

    Raises:
        MmfEnvironmentError: The selection cannot be read.
    """
    try:
        saved = read_json(_selection_file())
        return MmfInstall(_mmf_home() / saved["root"], saved["version"], saved["source"], saved["commit"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        message = f"{_selection_file()}: cannot be read ({error})"
        raise MmfEnvironmentError(message, hint="run `mmfw setup --mmf pypi`") from error


def has_selected_mmf() -> bool:
    """Return whether ``mmfw setup`` has ever selected a copy."""
    return _selection_file().exists()


def select_mmf(source_or_checkout: str | None = None, *, force: bool = False) -> MmfInstall:
    """Select a copy of MMF, fetching it if it is missing or damaged, or with ``force``.

    Args:
        source_or_checkout: Name of a source or folder of a checkout; ``None`` for the current selection.
        force: Fetch the copy even if it is intact.

    Returns:
        The selected copy.

    Raises:
        MmfEnvironmentError: The copy cannot be fetched.
        UsageError: The folder is not a checkout of MMF.
    """
    if source_or_checkout is None:
        current = read_selected_mmf()
        source_or_checkout = SOURCES[0].name if current is None else current.source
        if current is not None and current.source == "path":
            return use_checkout(find_mmf().root)
    source = next((source for source in SOURCES if source.name == source_or_checkout), None)
    return use_checkout(Path(source_or_checkout)) if source is None else install(source, force=force)


def install(source: MmfSource, *, force: bool = False) -> MmfInstall:
    """Select a copy from ``source``; an intact one is fetched again only with ``force``.

    The old copy stays in place until the new one is verified. A concurrent call waits for the first.

    Returns:
        The selected copy.

    Raises:
        MmfEnvironmentError: The copy cannot be fetched.
        OSError: The disk is full, or files are in use.
    """
    # Short, because paths on Windows are limited to 260 characters.
    root = _mmf_home() / f"{source.name}-{(source.commit or source.version)[:12]}"
    copy = MmfInstall(root, source.version, source.name, source.commit)
    with open_staging(_require_writable_home(), wait=True) as staging:
        if force or find_changed_files(copy) != []:
            manifest = source.fetch(staging)
            manifest.save()
            if damage := find_damage(manifest):
                hint = "run the same command again; if that fails, too, check the disk and the virus scanner"
                raise MmfEnvironmentError(f"MMF {copy.version} is damaged after the download ({damage[0]})", hint=hint)
            fsync_files([staging.new_dir / name for name in manifest.files])
            staging.install([(staging.new_dir, root)])
        return _save_selection(copy)


def use_checkout(checkout: Path) -> MmfInstall:
    """Select the user's checkout of MMF, which is neither copied nor changed.

    Returns:
        The selected copy.

    Raises:
        UsageError: The folder is not a checkout of MMF.
    """
    root = expand_home(checkout).resolve()
    if not _has_mmf(root):
        message = f"{root} is not a checkout of MMF: mmf/version.py or mmf_cli/run.py is missing"
        raise UsageError(message, hint="use pypi, github or a clone of https://github.com/facebookresearch/mmf")
    with open_staging(_require_writable_home(), wait=True):
        return _save_selection(MmfInstall(root, read_version(root), "path"))


def find_changed_files(mmf_install: MmfInstall, *, full: bool = False) -> list[str] | None:
    """Return the problems of a copy, one line per file, or ``None`` for a checkout that the user may edit.

    Args:
        mmf_install: Copy to verify.
        full: Read every file, including those not modified since they were last found intact.
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
    changes = [str(difference) for difference in find_damage(manifest, full=full, title="Verifying MMF")]
    stray = _find_importable_files(mmf_install.root) - manifest.files.keys()
    return changes + [f"extra: {name}" for name in sorted(stray)]


def _find_importable_files(root: Path) -> set[str]:
    """Return the files that Python could import; an unexpected one could replace a module."""
    files = (path for path in root.rglob("*") if path.suffix in _IMPORTABLE_SUFFIXES and path.is_file())
    names = {path.relative_to(root).as_posix() for path in files}
    return {name for name in names if "__pycache__" not in name.split("/")}


def _save_selection(mmf_install: MmfInstall) -> MmfInstall:
    # Relative if possible, so that a moved environment still finds its copy.
    is_in_home = mmf_install.root.parent == _mmf_home()
    selection = asdict(mmf_install) | {"root": mmf_install.root.name if is_in_home else str(mmf_install.root)}
    write_json(_selection_file(), selection)
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
        tempfile.TemporaryFile(dir=home).close()  # the only reliable check on every system
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise
        hint = "use your own virtual environment, or set MMFW_HOME to a writable folder"
        raise MmfEnvironmentError(f"{home}: not writable ({error.strerror})", hint=hint) from error
    return home


def _selection_file() -> Path:
    return _mmf_home() / "installed.json"
