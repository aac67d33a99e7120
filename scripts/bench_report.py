"""Time `mmfw report` on a test set of the real size, as a whole process.

python scripts/bench_report.py                2000 memes with pictures of about 350 kB
python scripts/bench_report.py --memes 10000

All pictures have one size, which is the most work: each must be looked at to find those that show the same.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from PIL import Image, ImageFilter

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.worlds import report_world  # noqa: E402

_SIZE = (600, 450)
_DIFFERENT = 50  # pictures that are drawn; the rest are copies of their bytes


def main() -> None:
    """Make the memes and a run that predicted them, and print what the page costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--memes", type=int, default=2000)
    count = parser.parse_args().memes
    with tempfile.TemporaryDirectory() as folder:
        world = report_world.make(Path(folder), groups=0)
        pictures = [picture(Random(n)) for n in range(_DIFFERENT)]
        memes = []
        for n in range(count):
            img = f"img/{n:05}.png"
            (world.dataset.images / img).write_bytes(pictures[n % _DIFFERENT])
            memes.append({"id": n, "img": img, "text": f"the words of {n // 2}", "label": n % 2})
        world.annotate(memes)
        run = world.run()
        world.predict(run)
        kib = sum(map(len, pictures)) / len(pictures) / 1024
        print(f"load before: {os.getloadavg()[0]:.1f}; pictures of {kib:.0f} KiB on average", flush=True)
        command = [sys.executable, "-m", "mmf_win", "report", "--save-dir", str(world.save), "--json"]
        start = time.monotonic()
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.PIPE
        )
        spent = time.monotonic() - start
        size = Path(json.loads(done.stdout)["report"]).stat().st_size
    print(f"{count} memes: {spent:.1f} s, a page of {size / 1e6:.2f} MB")


def picture(random: Random) -> bytes:
    """A PNG with the grain and the size in bytes of a photograph."""
    coarse = Image.frombytes("RGB", (24, 18), random.randbytes(24 * 18 * 3)).resize(_SIZE)
    grain = Image.frombytes("RGB", _SIZE, random.randbytes(_SIZE[0] * _SIZE[1] * 3))
    buffer = io.BytesIO()
    Image.blend(coarse, grain.filter(ImageFilter.BoxBlur(1)), 0.12).save(buffer, "PNG")
    return buffer.getvalue()


if __name__ == "__main__":
    main()
