"""``python -m mmf_win`` is the same as ``mmfw``."""

import sys

from mmf_win.cli import main

if __name__ == "__main__":
    sys.exit(main())
