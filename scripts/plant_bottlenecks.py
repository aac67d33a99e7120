"""Plant bottlenecks in a training, and see whether `mmfw profile` names each.

It needs MMF and what training needs.

python scripts/plant_bottlenecks.py          a line each, and exit code 1 if one is not named
python scripts/plant_bottlenecks.py --try    ... and what an update takes with the setting that it suggests

The model is a small MMBT that sees the pictures of the demo's memes. It has one thread, so that other
programs hinder it little. Waits for a disk are sleeps; a decoder that is slow keeps a processor busy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _demo_set import make

from mmf_win.demo.folder import DemoFolder

# MMF imports it: a ResNet of 4 blocks instead of 50, and what is planted.
_CODE = """\
import time
import torchvision
from mmf.datasets.databases.image_database import ImageDatabase
from mmf_win.worker.hooks import checkpoint_io
from torchvision.models.resnet import Bottleneck, ResNet

torchvision.models.resnet152 = lambda *_, **__: ResNet(Bottleneck, [1, 1, 1, 1])

def slower(owner, name, delay):
    original = getattr(owner, name)
    def slow(*args, **kwargs):
        delay()
        return original(*args, **kwargs)
    setattr(owner, name, slow)

def busy(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

"""


@dataclass(frozen=True)
class Plant:
    """A bottleneck.

    Attributes:
        name: what it is.
        code: plants it.
        words: more words for mmfw.
        named: matches the advice that names it, with its setting.
    """

    name: str
    code: str
    named: str
    words: Sequence[str] = ()


_PLANTS = (
    Plant("nothing", "", "the model itself takes the time"),
    Plant(
        "a slow decoder",
        "slower(ImageDatabase, 'open_image', lambda: busy(0.03))",
        "waits for data .*for the processor",
    ),
    Plant(
        "a slow disk to read from",
        "slower(ImageDatabase, 'open_image', lambda: time.sleep(0.03))",
        "waits for data .*for the disk.*: training.num_workers=",
    ),
    Plant(
        "a slow disk to write to",
        "slower(checkpoint_io, '_save', lambda: time.sleep(3))",
        "checkpoints of .*: training.checkpoint_interval=",
        ("training.checkpoint_interval=20",),
    ),
    Plant(
        "a tiny batch",
        "",
        "does not depend on its rows.*: training.batch_size=",
        ("training.batch_size=2",),
    ),
)


def preset(demo: DemoFolder, plant: Plant, folder: Path) -> Path:
    """A preset with the bottleneck in it."""
    bert = str(demo.data_dir / "bert-demo")
    code = folder / "code"
    code.mkdir()
    (code / "__init__.py").write_text(_CODE + plant.code + "\n", encoding="utf-8")
    size = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = {
        "bert_model_name": bert,
        "text_hidden_size": 64,
        "text_encoder": {"params": size},
        "modal_encoder": {"params": {"pretrained": False}},
    }
    pixels = ["ToTensor", "GrayScaleTo3Channels"]
    images = {"params": {"transforms": [{"type": "Resize", "params": {"size": [64, 64]}}, *pixels]}}
    tokens = {"params": {"tokenizer_config": {"type": bert}, "max_seq_length": 16}}
    values = {
        "model": "mmbt",
        "config": "projects/mmbt/configs/hateful_memes/defaults.yaml",
        "offline": True,
        "settings": {
            "env": {"user_dir": str(code)},
            "model_config": {"mmbt": model},
            "dataset_config": {
                "hateful_memes": {"processors": {"text_processor": tokens, "image_processor": images}}
            },
            "training": {"batch_size": 8, "num_workers": 0, "evaluation_interval": 1000},
        },
    }
    path = folder / "planted.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def profiled(demo: DemoFolder, plant: Plant, *more: str) -> Any:
    """What `mmfw profile` prints as JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = (
            "--data-dir",
            str(demo.data_dir),
            "--save-dir",
            str(folder / "save"),
            "--out",
            name + "/out",
        )
        words = (str(preset(demo, plant, folder)), *plant.words, *more, f"env.user_dir={folder / 'code'}")
        command = [sys.executable, "-m", "mmf_win", "profile", *words, *places, "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
        if done.returncode:
            sys.exit(f"{plant.name}: {done.stderr}")
        return json.loads(done.stdout)


def a_row(found: Any) -> float:
    """Milliseconds of a row in training, checkpoints included."""
    phases = found["phases"]
    saving = phases["saving"] / phases["saves"] / found["checkpoint_interval"]
    return 1000 * (sum(phases["spent"].values()) / phases["updates"] + saving) / phases["batch"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--try", dest="tries", action="store_true", help="profile again with the setting")
    parser.add_argument("--only", default="", help="a part of the name of what to plant")
    parser.add_argument("--keep", type=Path, help="a folder for the figures of each")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        demo = make(Path(folder) / "demo")
        for plant in _PLANTS:
            if options.only not in plant.name:
                continue
            found = profiled(demo, plant)
            advice = {
                f"{a['text']}: {a['setting']}" if a["setting"] else a["text"]: a["setting"]
                for a in found["verdict"]
            }
            named = next((text for text in advice if re.search(plant.named, text)), None)
            missed += named is None
            print(f"{plant.name}: {'named' if named else 'NOT NAMED'}")
            print(*(f"    {text}" for text in advice), sep="\n", flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                kept = options.keep / f"{plant.name.replace(' ', '-')}.json"
                figures = {key: found[key] for key in found if key not in ("verdict", "page", "trace")}
                kept.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            if options.tries and named and (setting := advice[named]):
                again = profiled(demo, plant, setting)
                print(f"    a row took {a_row(found):.1f} ms, and with it {a_row(again):.1f} ms", flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
