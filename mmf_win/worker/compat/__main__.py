"""``python -m mmf_win.worker.compat ROOT VERSION``: the patches for a copy of MMF, as JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from mmf_win.console import print_json
from mmf_win.worker.compat import survey


def main(root: str, version: str) -> None:
    """Print the patches for the MMF of this version in ``root``."""
    print_json(
        [
            {
                "name": patch.name,
                "active": active,
                "problem": patch.problem,
                "mmf": sorted(patch.mmf),
                "library": patch.library,
            }
            for patch, active in survey(Path(root), version)
        ]
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
