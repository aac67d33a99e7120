"""MMF's own downloader, in a process of its own, with nothing of mmfw's in its way but the patches.

``python -m tests.worlds.mmf_download MMF_ROOT FOLDER ENTRY [LARGEST]`` downloads and unpacks an entry of a
zoo, given as JSON, to FOLDER as MMF does when a run starts. With LARGEST, the system kills the process when
it would write a file of more bytes than that: as ``kill -9`` amidst the extraction, always at the same byte.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(root: Path, folder: Path, entry: str, largest: int | None) -> None:
    """Do what the module says."""
    from mmf_win.upstream.versions import read_version
    from mmf_win.worker import compat

    compat.install(root, read_version(root))

    from mmf.utils.download import download_resources

    if largest is not None:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python has made an error of it
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    listed = json.loads(entry)
    download_resources(listed["resources"], str(folder), listed["version"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]) if sys.argv[4:] else None)
