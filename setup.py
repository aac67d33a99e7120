"""What pyproject.toml cannot say well: the C extension, without which mmfw is slower but whole."""

import os
from pathlib import Path

from setuptools import Extension, setup

_SOURCES = Path("mmf_win", "archives", "native")

setup(
    ext_modules=[
        Extension(
            "mmf_win.archives._zipcrypto",
            sources=[(_SOURCES / name).as_posix() for name in ("module.c", "kernels.c", "ssse3.c", "avx2.c")],
            depends=[(_SOURCES / name).as_posix() for name in ("cipher.h", "kernels.h", "vector.h")],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=[] if os.name == "nt" else ["-std=c99", "-O3"],
            py_limited_api=True,
            optional=True,  # a machine without a compiler installs the rest
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
