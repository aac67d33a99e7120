"""Entry point of ``python -m mmf_win``, which equals ``mmfw``."""

import sys

from mmf_win.cli import main

if __name__ == "__main__":
    sys.exit(main())
