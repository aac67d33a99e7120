"""MMF's own ``mmf_run`` or ``mmf_predict`` with nothing of mmfw but the patches that let it start.

python scripts/_mmf_alone.py run|predict [KEY=VALUE ...]
"""

from __future__ import annotations

import sys

from mmf_win import compat
from mmf_win.upstream.install import require_mmf


def main(command: str) -> None:
    """Do what MMF's command does with the rest of the arguments."""
    mmf = require_mmf()
    compat.install(mmf.root, compat.REQUIRED_PATCHES)
    if command == "run":
        from mmf_cli.run import run

        run()
    else:
        from mmf_cli.predict import predict

        predict()


if __name__ == "__main__":
    main(sys.argv.pop(1))
