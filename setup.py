"""Build steps that pyproject.toml cannot express.

They build the C extension, without which mmfw works but is slower, and copy constraints.txt, which is in the
root folder of the repository, into the package.
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

_NATIVE = Path("mmf_win", "archives", "native")

_ZIPCRYPTO = Extension(
    "mmf_win.archives._zipcrypto",
    # check.c is a separate program for the tests
    sources=sorted(path.as_posix() for path in _NATIVE.glob("*.c") if path.name != "check.c"),
    depends=sorted(path.as_posix() for path in _NATIVE.glob("*.h")),
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    extra_compile_args=[] if os.name == "nt" else ["-std=c99", "-O3"],
    py_limited_api=True,
    optional=True,  # without a compiler, only the extension is missing
)


class _WithConstraints(build_py):
    """Build step that copies constraints.txt into the wheel; an editable mmfw reads it in the repository."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_file("constraints.txt", str(Path(self.build_lib, "mmf_win", "constraints.txt")))


setup(
    ext_modules=[_ZIPCRYPTO],
    cmdclass={"build_py": _WithConstraints},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
