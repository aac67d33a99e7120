"""Install mmfw into .venv of this checkout, get MMF, and run the demo; needs no more than Python.

python scripts/demo.py [--setup-only] [arguments of `mmfw demo`]
"""

from __future__ import annotations

import sys

from _venv import Venv


def main(arguments: list[str]) -> int:
    """Return the exit code of the demo, or of what failed before it."""
    venv = Venv(".venv", ["train", "dev"])
    venv.ensure()
    code = venv.run("mmfw", "setup").returncode
    if code or "--setup-only" in arguments:
        return code
    return venv.run("mmfw", "demo", *arguments).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
