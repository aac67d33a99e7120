"""Install mmfw into .venv of this checkout, get MMF, and run the demo; needs no more than Python.

python scripts/demo.py [--setup-only] [arguments of `mmfw demo`]

What is there already is not downloaded again. PyTorch is the build for the CPU.
"""

from __future__ import annotations

import sys

from _venv import Venv


def main(arguments: list[str]) -> int:
    """Return the exit code of the demo, or of what failed before it."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if "--setup-only" in arguments and len(arguments) > 1:
        sys.exit("--setup-only runs no demo that could take arguments.")
    venv = Venv(".venv", ["train"], for_demo=True)
    _say("1 of 3: PyTorch for the CPU and other packages: at most 0.4 GB to download, one to three minutes")
    venv.ensure()
    _say("2 of 3: MMF: less than 1 MB to download, a few seconds")
    code = venv.run("mmfw", "setup").returncode
    if code or "--setup-only" in arguments:
        return code
    _say("3 of 3: the demo: nothing to download, one to two minutes where nothing else runs")
    return venv.run("mmfw", "demo", *arguments).returncode


def _say(step: str) -> None:
    print(f"\n{step}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
