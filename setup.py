"""What pyproject.toml cannot say well: the C extensions, without which mmfw is slower but whole."""

import os
from pathlib import Path

from setuptools import Extension, setup

_NATIVE = Path("mmf_win", "archives", "native")


def _extension(name: str) -> Extension:
    """The module of the sources in one folder; ``check.c`` is a program of its own, for the tests."""
    folder = _NATIVE / name
    return Extension(
        f"mmf_win.archives._{name}",
        sources=sorted(path.as_posix() for path in folder.glob("*.c") if path.name != "check.c"),
        depends=[(_NATIVE / "cpu.h").as_posix(), *sorted(path.as_posix() for path in folder.glob("*.h"))],
        define_macros=[("Py_LIMITED_API", "0x030A0000")],
        extra_compile_args=[] if os.name == "nt" else ["-std=c99", "-O3"],
        py_limited_api=True,
        optional=True,  # a machine without a compiler installs the rest
    )


setup(
    ext_modules=[_extension("zipcrypto"), _extension("winzip_aes")],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
