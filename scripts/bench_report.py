"""Time `mmfw report` on a test set of the real size, as a whole process.

python scripts/bench_report.py                2000 memes with pictures of about 360 KiB
python scripts/bench_report.py --memes 10000

All pictures have one size, which is the most work: each must be looked at to find those that show the same.
A quarter of the memes share theirs with one other, under other words.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image, ImageDraw, ImageFilter, ImageFont

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.worlds import report_world  # noqa: E402

_SIZE = (600, 450)
_RUNS = 5


def main() -> None:
    """Make the memes and a run that predicted them, and print what the page costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--memes", type=int, default=2000)
    count = parser.parse_args().memes
    with tempfile.TemporaryDirectory() as folder:
        world = report_world.make(Path(folder), groups=0)
        memes = [
            {"id": n, "img": f"img/{n:05}.png", "text": f"the words of {n // 2}", "label": n % 2}
            for n in range(count)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow encodes without holding the interpreter
            sizes = list(pool.map(lambda meme: draw(meme, world.dataset.images), memes))
        world.annotate(memes)
        run = world.run()
        world.predict(run)
        kib = sum(sizes) / count / 1024
        print(f"load before: {os.getloadavg()[0]:.1f}; pictures of {kib:.0f} KiB on average", flush=True)
        command = [sys.executable, "-m", "mmf_win", "report", "--save-dir", str(world.save), "--json"]
        spent = []
        for _ in range(_RUNS):
            start = time.monotonic()
            done = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.PIPE
            )
            spent.append(time.monotonic() - start)
        size = Path(json.loads(done.stdout)["report"]).stat().st_size
    print(
        f"{count} memes: {statistics.median(spent):.1f} s, the median of {_RUNS} runs"
        f" ({min(spent):.1f} to {max(spent):.1f}); a page of {size / 1e6:.2f} MB"
    )


def draw(meme: dict[str, Any], folder: Path) -> int:
    """Write a meme's picture, with the grain and the size of a photograph and words of its own; its size."""
    shared = meme["id"] - 1 if meme["id"] % 8 == 1 else meme["id"]
    random = Random(shared)
    coarse = Image.frombytes("RGB", (24, 18), random.randbytes(24 * 18 * 3)).resize(_SIZE)
    grain = Image.frombytes("RGB", _SIZE, random.randbytes(_SIZE[0] * _SIZE[1] * 3))
    image = Image.blend(coarse, grain.filter(ImageFilter.BoxBlur(1)), 0.12)
    for y, words in ((10, f"a caption of {meme['id']}"), (390, "and below")):
        font = ImageFont.load_default(48)
        ImageDraw.Draw(image).text((300, y), words, "white", font, "ma", stroke_width=3, stroke_fill="black")
    path = folder / meme["img"]
    image.save(path)
    return path.stat().st_size


if __name__ == "__main__":
    main()
