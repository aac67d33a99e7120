"""Damage archives, runs and sweeps, and kill installations; see whether anything false is believed.

python scripts/fuzz.py                            two minutes, shared by all kinds
python scripts/fuzz.py --minutes 30 archives      archives alone
python scripts/fuzz.py --seed 17 kills            from this case on

Each case has a number, from which all of it follows. A finding is told with its number, for ``--seed``.
The exit code is 1 after a finding.
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
    """Try cases until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("kinds", nargs="*", metavar="|".join(_KINDS), help="all if none")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long altogether (default 2)")
    parser.add_argument("--seed", type=int, help="the number of the first case")
    parser.add_argument("--cases", type=int, metavar="N", help="only so many of each, however long they take")
    asked = parser.parse_args()
    kinds = asked.kinds or list(_KINDS)
    first = random.randrange(10**6) if asked.seed is None else asked.seed
    found = 0
    for kind in kinds:
        end = time.monotonic() + 60 * asked.minutes / len(kinds)
        with tempfile.TemporaryDirectory() as folder, _KINDS[kind](Path(folder)) as case:
            for seed in count(first):
                try:
                    case(Random(seed))
                except Exception:
                    found += 1
                    print(f"{kind}, case {seed}:\n{traceback.format_exc()}", flush=True)
                if seed - first + 1 == asked.cases or (asked.cases is None and time.monotonic() > end):
                    break
        print(f"{kind}: cases {first} to {seed}", flush=True)
    return min(found, 1)


@contextmanager
def _fuzz_archives(folder: Path) -> Iterator[Case]:
    """Archives of the dataset with a few bytes changed: all comes out, or an error names the file."""
    intact = [
        hostile_archives.write_zip(folder / "plain.zip", dataset_files()),
        make_encrypted_zip(folder / "encrypted.zip", dataset_files()),
        write_7z(folder / "a.7z", dataset_files()),
        write_tar(folder / "a.tar.gz", dataset_files(), "gz"),
    ]
    wanted = mmf_layout(dataset_files())

    def case(rng: Random) -> None:
        source = rng.choice(intact)
        data = bytearray(source.read_bytes())
        for _ in range(rng.choice((1, 1, 1, 4))):
            # Lists of members are at the end, but for those of a tar.
            start = rng.choice((0, max(0, len(data) - 3000)))
            data[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
        damaged = folder / f"damaged {source.name}"
        damaged.write_bytes(data[: rng.choice((len(data), len(data), rng.randrange(1, len(data))))])
        places = MmfPaths.resolve(folder / "data", folder / "save")
        try:
            convert(damaged, places, ask=lambda: PASSWORD)
        except MmfwError as error:
            assert damaged.name in str(error), error
            assert not read_tree(places.data_dir), "something is left"
        else:
            assert read_tree(places.dataset.root) == wanted, "something else came out"
        finally:
            shutil.rmtree(places.data_dir, ignore_errors=True)

    yield case


@contextmanager
def _fuzz_7z_headers(folder: Path) -> Iterator[Case]:
    """7z with changed headers, by right checksums: what they list comes out, or an error names the file."""
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
    """Installations that are killed at any step on the disk."""
    kinds = list(make_install_commands(folder).values())
    steps = [kind.find_steps()[0] for kind in kinds]

    def case(rng: Random) -> None:
        which = rng.randrange(len(kinds))
        kinds[which].check_kill_at_step(rng.randint(1, steps[which]))

    yield case


@contextmanager
def _fuzz_runs(folder: Path) -> Iterator[Case]:
    """A run with a damaged file: each command that reads runs does well, or says what is wrong with it."""
    world = DamagedRuns(folder)

    def case(rng: Random) -> None:
        wrong = world.find_failures(rng, with_reports=rng.random() < 0.2)
        assert not wrong, "\n".join(wrong)

    yield case


@contextmanager
def _fuzz_sweeps(folder: Path) -> Iterator[Case]:
    """The same of a sweep, from which no name leads to files outside."""
    world = DamagedSweeps(folder)

    def case(rng: Random) -> None:
        wrong = world.find_failures(rng)
        assert not wrong, "\n".join(wrong)

    yield case


@contextmanager
def _fuzz_pickles(_: Path) -> Iterator[Case]:
    """Pickles of region features, made to harm or damaged: all are read or refused."""
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
