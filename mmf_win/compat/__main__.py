"""``python -m mmf_win.compat ROOT VERSION``: print the patches for a copy of MMF as JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from mmf_win.compat import PATCHES
from mmf_win.console import print_json


def main(root: str, version: str) -> None:
    """Print all patches, and for each whether it is active for the MMF in ``root``."""
    print_json(
        [
            {
                "name": patch.name,
                "active": patch.is_active(Path(root), version),
                "problem": patch.problem,
                "mmf": sorted(patch.mmf_versions),
                "library": patch.library,
            }
            for patch in PATCHES
        ]
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
