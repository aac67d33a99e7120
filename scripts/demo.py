"""Install mmfw into .venv of this checkout, install MMF, and run the demo; needs only Python.

python scripts/demo.py [--setup-only] [arguments of `mmfw demo`]

Files that exist are not downloaded again. PyTorch is the build for the CPU.
"""

# Every Python can parse this file, even 2.7, so that old versions print an error. The rest is in _demo.py.
import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit("mmfw needs Python 3.10 or newer, and this is Python %d.%d." % sys.version_info[:2])  # noqa: UP031

from _demo import main

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(sys.argv[1:]))
