"""Damage archives, runs and sweeps and kill installations, and check that no damaged data is accepted.

python scripts/fuzz.py                            two minutes, shared by all kinds
python scripts/fuzz.py --minutes 30 archives      only archives
python scripts/fuzz.py --seed 17 kills            starting with this case

Each case is determined by its number. A failure is printed with its number, for ``--seed``. The exit code is
1 after a failure.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import py7zr  # noqa: E402

from mmf_win.archives import open_archive  # noqa: E402
from mmf_win.dataset.convert import convert  # noqa: E402
from mmf_win.errors import MmfwError  # noqa: E402
from mmf_win.paths import MmfPaths  # noqa: E402
from tests.worlds import hostile_archives  # noqa: E402
from tests.worlds.archive_writers import write_7z, write_tar  # noqa: E402
from tests.worlds.crash_points import make_install_commands  # noqa: E402
from tests.worlds.damaged_runs import DamagedRuns  # noqa: E402
from tests.worlds.damaged_sweeps import DamagedSweeps  # noqa: E402
from tests.worlds.memes import PASSWORD, dataset_files, make_encrypted_zip, mmf_layout, read_tree  # noqa: E402
from tests.worlds.pickles import PickleReader  # noqa: E402

Case = Callable[[Random], object]


def main() -> int:
    """Run cases until the time is over; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("kinds", nargs="*", metavar="|".join(_KINDS), help="all if none")
    parser.add_argument("--minutes", type=float, default=2.0, help="total time (default 2)")
    parser.add_argument("--seed", type=int, help="the number of the first case")
    parser.add_argument("--cases", type=int, metavar="N", help="number of cases per kind, without a time limit")
    options = parser.parse_args()
    kinds = options.kinds or list(_KINDS)
    first = random.randrange(10**6) if options.seed is None else options.seed
    finding_count = 0
    for kind in kinds:
        end = time.monotonic() + 60 * options.minutes / len(kinds)
        with tempfile.TemporaryDirectory() as folder, _KINDS[kind](Path(folder)) as case:
            for seed in count(first):
                try:
                    case(Random(seed))
                except Exception:
                    finding_count += 1
                    print(f"{kind}, case {seed}:\n{traceback.format_exc()}", flush=True)
                if seed - first + 1 == options.cases or (options.cases is None and time.monotonic() > end):
                    break
        print(f"{kind}: cases {first} to {seed}", flush=True)
    return min(finding_count, 1)


@contextmanager
def _fuzz_archives(folder: Path) -> Iterator[Case]:
    """Change a few bytes of dataset archives: the content must be complete, or the error names the file."""
    intact = [
        hostile_archives.write_zip(folder / "plain.zip", dataset_files()),
        make_encrypted_zip(folder / "encrypted.zip", dataset_files()),
        write_7z(folder / "a.7z", dataset_files()),
        write_tar(folder / "a.tar.gz", dataset_files(), "gz"),
    ]
    expected = mmf_layout(dataset_files())

    def case(rng: Random) -> None:
        source = rng.choice(intact)
        data = bytearray(source.read_bytes())
        for _ in range(rng.choice((1, 1, 1, 4))):
            # The list of members is at the end of the file, except in a tar.
            start = rng.choice((0, max(0, len(data) - 3000)))
            data[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
        damaged = folder / f"damaged {source.name}"
        damaged.write_bytes(data[: rng.choice((len(data), len(data), rng.randrange(1, len(data))))])
        paths = MmfPaths.resolve(folder / "data", folder / "save")
        try:
            convert(damaged, paths, ask=lambda: PASSWORD)
        except MmfwError as error:
            assert damaged.name in str(error), error
            assert not read_tree(paths.data_dir), "files were left behind"
        else:
            assert read_tree(paths.dataset.root) == expected, "the content is wrong"
        finally:
            shutil.rmtree(paths.data_dir, ignore_errors=True)

    yield case


@contextmanager
def _fuzz_7z_headers(folder: Path) -> Iterator[Case]:
    """Change 7z headers and fix their checksums: extraction succeeds, or the error names the file."""
    packers = (
        {"id": py7zr.FILTER_PPMD, "order": 6, "mem": 16},
        {"id": py7zr.FILTER_BROTLI, "level": 3},
        {"id": py7zr.FILTER_ZSTD, "level": 3},
        *({"id": packer} for packer in (py7zr.FILTER_LZMA2, py7zr.FILTER_BZIP2, py7zr.FILTER_DEFLATE)),
    )
    intact = [
        hostile_archives.seven_zip_with_packed_list(folder / f"{number}.7z", dataset_files(), packer)
        for number, packer in enumerate(packers)
    ]

    def case(rng: Random) -> None:
        damaged = hostile_archives.mutate_header(Path(shutil.copy(rng.choice(intact), folder / "a.7z")), rng)
        try:
            archive = open_archive(damaged, lambda: PASSWORD)
            list(archive.extract(lambda member: folder / "out" / member.name))
        except MmfwError as error:
            assert damaged.name in str(error), error
        finally:
            shutil.rmtree(folder / "out", ignore_errors=True)

    yield case


@contextmanager
def _fuzz_kills(folder: Path) -> Iterator[Case]:
    """Kill installations at random steps on the disk."""
    kinds = list(make_install_commands(folder).values())
    steps = [kind.find_steps()[0] for kind in kinds]

    def case(rng: Random) -> None:
        index = rng.randrange(len(kinds))
        kinds[index].check_kill_at_step(rng.randint(1, steps[index]))

    yield case


@contextmanager
def _fuzz_runs(folder: Path) -> Iterator[Case]:
    """Damage a file of a run: each command that reads runs must succeed or report the damage."""
    world = DamagedRuns(folder)

    def case(rng: Random) -> None:
        failures = world.find_failures(rng, with_reports=rng.random() < 0.2)
        assert not failures, "\n".join(failures)

    yield case


@contextmanager
def _fuzz_sweeps(folder: Path) -> Iterator[Case]:
    """Damage a file of a sweep: as for runs, and no name may lead to files outside of it."""
    world = DamagedSweeps(folder)

    def case(rng: Random) -> None:
        failures = world.find_failures(rng)
        assert not failures, "\n".join(failures)

    yield case


@contextmanager
def _fuzz_pickles(_: Path) -> Iterator[Case]:
    """Damage pickles of region features, or make malicious ones: each is read or refused."""
    reader = PickleReader()
    yield lambda chance: reader.read(chance.getrandbits(32))
    reader.close()


_KINDS = {
    "archives": _fuzz_archives,
    "headers": _fuzz_7z_headers,
    "kills": _fuzz_kills,
    "pickles": _fuzz_pickles,
    "runs": _fuzz_runs,
    "sweeps": _fuzz_sweeps,
}

if __name__ == "__main__":
    sys.exit(main())
