"""MMF's ``mmf_run`` or ``mmf_predict``, with only the patches of mmfw that are required to start.

python scripts/_mmf_alone.py run|predict [KEY=VALUE ...]
"""

from __future__ import annotations

import sys

from mmf_win import compat
from mmf_win.upstream.install import require_mmf


def main(command: str) -> None:
    """Run MMF's command with the remaining arguments."""
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
