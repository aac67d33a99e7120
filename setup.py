"""What pyproject.toml cannot say well: the C extension, without which mmfw is slower but complete."""

import os
from pathlib import Path

from setuptools import Extension, setup

_NATIVE = Path("mmf_win", "archives", "native")

_ZIPCRYPTO = Extension(
    "mmf_win.archives._zipcrypto",
    # check.c is a program of its own, for the tests
    sources=sorted(path.as_posix() for path in _NATIVE.glob("*.c") if path.name != "check.c"),
    depends=sorted(path.as_posix() for path in _NATIVE.glob("*.h")),
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    extra_compile_args=[] if os.name == "nt" else ["-std=c99", "-O3"],
    py_limited_api=True,
    optional=True,  # a machine without a compiler installs the rest
)

setup(ext_modules=[_ZIPCRYPTO], options={"bdist_wheel": {"py_limited_api": "cp310"}})
