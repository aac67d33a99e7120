"""Measure how fast features are unpacked and verified, compared with other programs.

python scripts/bench_integrity.py               tables on standard output
python scripts/bench_integrity.py --size 100    a smaller archive

Needs Linux, tar and numpy.
The archive resembles MMF's features: one large data.mdb of float32 numbers, whose negative ones were set
to zero, and a few small files, packed by the real `tar czf`. Every contestant runs as a complete process,
including start-up, in turn with the others. The tables show medians with their spread. Only mmfw hashes the
archive and each file (SHA-256), flushes the files to the disk and writes the manifest. The manifest is then
checked by the real `sha256sum --check`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from _bench import (
    DISK,
    MB,
    PYTHON,
    TMPFS,
    Cost,
    make_files,
    make_parser,
    measure_after_warmup,
    measure_command,
    print_costs,
)
from bench_archives import make_extraction

_EXTRACT_CODE = """\
import sys
from pathlib import Path
from mmf_win.unpacking.extract import extract_verified
extract_verified(Path(sys.argv[1]), Path(sys.argv[2]))
"""
_UNPACK_CODE = "import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])"
_VERIFY_CODE = """\
import sys
from pathlib import Path
from mmf_win.integrity.manifest import Manifest
from mmf_win.integrity.verify import find_damage
assert find_damage(Manifest.load(Path(sys.argv[1])), full=sys.argv[2] == "full") == []
"""
_RECORD_CODE = """\
import sys
from pathlib import Path
from mmf_win.integrity.verify import record_hashes
folder = Path(sys.argv[1])
record_hashes(folder, [path.name for path in folder.iterdir()])
"""
# In a separate process, since a child's peak memory starts with that of its parent.
_WRITE_FEATURES_CODE = """\
import sys
import numpy as np
random = np.random.default_rng(1)
with open(sys.argv[1], "wb") as file:
    while file.tell() < int(sys.argv[2]):
        file.write(np.maximum(random.standard_normal(4 << 20, dtype=np.float32), 0).tobytes())
"""


def bench_extraction(archive: Path, out: Path, runs: int, disk_name: str) -> None:
    """Compare extractions of a tar.gz to files."""
    programs = {
        "tar xf": lambda path, out: ["tar", "xf", path, "-C", out],
        "shutil.unpack_archive": lambda path, out: [PYTHON, "-c", _UNPACK_CODE, path, out],
        "**mmfw**, hashes and manifest included": lambda path, out: [PYTHON, "-c", _EXTRACT_CODE, path, out],
    }
    contestants = {name: make_extraction(program, archive, out) for name, program in programs.items()}
    print_costs(f"extraction on {disk_name}", measure_after_warmup(contestants, runs))


def bench_rehash(title: str, folder: Path, runs: int) -> None:
    """Compare verifications of files by their hashes; the other program runs one process per CPU."""
    find = f"find '{folder}' -type f ! -name 'SHA256SUMS*' -print0"
    command = f"{find} | xargs -0 -P {os.cpu_count()} -n 100 sha256sum"

    def verify(mode: str) -> Cost:
        return measure_command([PYTHON, "-c", _VERIFY_CODE, folder, mode])

    contestants = {
        "xargs sha256sum": lambda: measure_command(["sh", "-c", command]),
        "**mmfw**": lambda: verify("full"),
        "**mmfw**, of unmodified files": lambda: verify("quick"),
    }
    print_costs(f"rehash of {title}", measure_after_warmup(contestants, runs))


def main() -> None:
    """Create the files and print the tables."""
    parser = make_parser(__doc__, runs=5)
    parser.add_argument("--size", type=int, default=400, help="of data.mdb in MB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=TMPFS) as tmpfs, tempfile.TemporaryDirectory(dir=DISK) as disk:
        work, out = Path(tmpfs), Path(tmpfs, "out")
        make_files(work / "features" / "extras", 100 * [20_000])
        measure_command([PYTHON, "-c", _WRITE_FEATURES_CODE, work / "features" / "data.mdb", str(options.size * MB)])
        archive = work / "features.tar.gz"
        measure_command(["tar", "czf", archive, "-C", work / "features", "."])
        shutil.rmtree(work / "features")
        print(f"{archive.stat().st_size // MB} MB unpack to {options.size} MB and 100 small files.")
        bench_extraction(archive, out, options.runs, "tmpfs")
        bench_extraction(Path(shutil.copy(archive, disk)), Path(disk, "out"), options.runs, "a disk")
        measure_command(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=out)
        bench_rehash("the features", out, options.runs)
        for count, size in ((3_000, 120_000), (12_000, 30_000)):
            images = make_files(work / str(count), count * [size])
            measure_command([PYTHON, "-c", _RECORD_CODE, images])
            bench_rehash(f"{count} files of {size // 1000} kB", images, options.runs)


if __name__ == "__main__":
    main()
