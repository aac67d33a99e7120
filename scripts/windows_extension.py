"""Build the C extension for a 64-bit Windows Python on another system, by mingw-w64's cross compiler.

The extension is written to the package, where only a Windows Python imports it. The headers of any Python can
be
used: what depends on the system is in pyconfig.h, which is replaced here by one for Windows.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from windows_python import COMPILER

ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = ROOT / "mmf_win" / "archives"
_PYCONFIG = """\
#define MS_WIN32
#define MS_WIN64
#define MS_WINDOWS
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED 1
#define HAVE_STDDEF_H 1
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_VOID_P 8
#define SIZEOF_WCHAR_T 2
#define SIZEOF_PID_T 4
#define ALIGNOF_SIZE_T 8
"""


def build_extension(python_dll: Path) -> None:
    """Build the extension and link it to ``python3.dll``."""
    with tempfile.TemporaryDirectory() as folder:
        headers = Path(folder, "include")
        shutil.copytree(sysconfig.get_paths()["include"], headers)
        (headers / "pyconfig.h").write_text(_PYCONFIG, encoding="utf-8")
        command = [COMPILER, "-shared", "-O3", "-std=c99", "-DPy_LIMITED_API=0x030A0000"]
        command += ["-Wa,-muse-unaligned-vector-move", "-DNATIVE_UNALIGNED_MOVES"]  # see cpu.h
        command += ["-I", str(headers)]
        sources = [str(path) for path in (_PACKAGE / "native").glob("*.c") if path.name != "check.c"]
        out = ["-o", str(_PACKAGE / "_zipcrypto.pyd")]
        subprocess.run([*command, *sources, str(python_dll), *out], check=True)
