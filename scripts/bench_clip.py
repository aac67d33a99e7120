"""Measure epochs of a frozen CLIP: with its outputs computed, read from the disk, and in memory.

python scripts/bench_clip.py                     towers of the size of clip_b32, random weights, 400 memes
python scripts/bench_clip.py --small             tiny towers, to try this script

The preset equals clip_b32 except for its weights, and the memes are those of the demo. Each run trains three
epochs. Runs that start without cached outputs alternate with runs that use those of the previous run.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from _bench import MMFW, PYTHON, format_ratio, format_spread, make_parser, measure_command, print_table, run_in_turn

from mmf_win.demo.folder import PASSWORD, DemoFolder
from mmf_win.protocol import read_events
from mmf_win.runs import lookup

UPDATES_PER_EPOCH = 7  # an epoch of 400 memes in batches of 64
TEXT_SIZES = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "intermediate_size": 2048}
VISION_SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
SMALL_SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
WRITE_CLIP_CODE = """
import json, sys
from pathlib import Path
from mmf_win.worker.tiny_models import write_clip
write_clip(Path(sys.argv[1]), ["love", "hate", "people"], 1, json.loads(sys.argv[2]), json.loads(sys.argv[3]))
"""


def main() -> None:
    """Create the memes and the CLIP, train in turn, and print a table."""
    parser = make_parser(__doc__, runs=3)
    parser.add_argument("--small", action="store_true", help="tiny towers")
    options = parser.parse_args()
    text, vision = (SMALL_SIZES, SMALL_SIZES) if options.small else (TEXT_SIZES, VISION_SIZES)
    text, vision = {**text, "max_position_embeddings": 77}, {**vision, "image_size": 224, "patch_size": 32}
    with tempfile.TemporaryDirectory() as name:
        demo, clip, cache = DemoFolder(Path(name, "demo")), Path(name, "clip"), Path(name, "cache")
        demo.claim()
        demo.generate_files(1, "clip")
        measure_command([PYTHON, "-c", WRITE_CLIP_CODE, clip, json.dumps(text), json.dumps(vision)])
        data = ("--data-dir", demo.data_dir)
        measure_command([*MMFW, "convert", "--zip", demo.archive, "--password", PASSWORD, *data])

        def train() -> list[float]:
            """Return the seconds of each epoch without validation."""
            arguments = ("--epochs", "3", "--seed", "1", f"training.log_interval={UPDATES_PER_EPOCH}")
            arguments = (*arguments, "training.evaluation_interval=1000", "training.checkpoint_interval=1000")
            model = f"model_config.clip.clip_model_name={clip}"
            folders = (*data, "--save-dir", demo.save_dir)
            measure_command([*MMFW, "train", "clip_b32", model, *arguments, *folders], MMF_CACHE_DIR=str(cache))
            events = read_events(lookup.find_run(demo.save_dir, "clip_b32").events)
            times = [event["t"] for event in events if event["kind"] in ("train_started", "train")]
            return [end - start for start, end in pairwise(times)][:3]

        def train_without_cache() -> list[float]:
            shutil.rmtree(cache, ignore_errors=True)
            return train()

        results = run_in_turn({"nothing": train_without_cache, "kept": train}, options.runs)
    first = [epochs[0] for epochs in results["nothing"]]
    rows = {
        "first epoch: towers run": first,
        "first epoch of another run: outputs read from the disk": [epochs[0] for epochs in results["kept"]],
        "**later epochs: outputs in memory**": [s for runs in results.values() for e in runs for s in e[1:]],
    }
    print_table(
        "400 memes", ("s", "×"), [(title, format_spread(s), format_ratio(first, s)) for title, s in rows.items()]
    )


if __name__ == "__main__":
    main()
