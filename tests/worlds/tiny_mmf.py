"""A small world in which the real MMF trains in seconds: data, word vectors, a BERT, and sizes to match.

Everything is seeded, a few megabytes large, and in the formats of the real thing.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from tests.worlds import npy

WORDS = (
    *("a", "the", "cat", "dog", "tree", "love", "hate", "good", "bad", "this", "you"),
    *("café", "смех", "世界"),
)
SPLITS = {"train": 14, "dev_seen": 4, "dev_unseen": 5, "test_seen": 4, "test_unseen": 5}
BOXES = 10  # of each image; real ones have 100
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)  # of the BERT
HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 32, 2, 4, 64, 64  # of the BERT
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
BERT_SIZES = SIZES | {
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "vocab_size": len(TOKENS),
}
FEATURES = 2048  # numbers a box, which MMF's configurations count on
FC7 = 24  # real ones have 2048
BERT = "bert-base-uncased"  # as MMF's configurations call it
COMMIT = "86b5e0934494bd15c9632b12f734a8a67f723594"
CLASSES = 1601  # of the detector that made the real features


class TinyWorld:
    """Where everything is.

    Args:
        root: holds the rest.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"  # for MMF_DATA_DIR
        self.cache = root / "cache"  # for MMF_CACHE_DIR; holds the GloVe file
        self.models = root / "hf"  # for HF_HOME
        # Of two layers, where transformers has put it.
        self.bert = self.models / "hub" / f"models--{BERT}" / "snapshots" / COMMIT
        self.dataset = self.data / "datasets" / "hateful_memes" / "defaults"

    def copy(self, root: Path) -> TinyWorld:
        """The same world in another folder, where a test may change it."""
        return TinyWorld(Path(shutil.copytree(self.root, root)))

    @property
    def environment(self) -> dict[str, str]:
        """What MMF needs to know, and a stop to every download."""
        return {
            "MMF_DATA_DIR": str(self.data),
            "MMF_CACHE_DIR": str(self.cache),
            "MMF_DATASET_ZOO": str(self.root / "zoo.yaml"),
            "HF_HOME": str(self.models),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUTF8": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
        }


def build(root: Path) -> TinyWorld:
    """The whole world in ``root``, a folder that is made if need be."""
    world = TinyWorld(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / "zoo.yaml").write_text("{}\n", encoding="utf-8")
    ids = build_dataset(world.dataset)
    build_features(world.dataset / "features" / "detectron.lmdb", ids)
    for folder in (world.data / "vocabs", world.dataset / "extras" / "vocabs"):
        folder.mkdir(parents=True)
        _write_lines(folder / "vocabulary_100k.txt", ("<pad>", "<s>", "</s>", "<unk>", *WORDS))
    world.cache.mkdir()
    build_word_vectors(world.cache / "glove.6B.300d.txt")
    build_fc7(world.data / "models" / "detectron.defaults")
    build_bert(world.bert)
    refs = world.bert.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT, encoding="utf-8")
    return world


def build_dataset(root: Path, splits: Mapping[str, int] = SPLITS) -> list[str]:
    """Annotations with labels, and images, in MMF's layout; returns the images' stems."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    images = root / "images" / "img"
    annotations = root / "annotations"
    for folder in (images, annotations):
        folder.mkdir(parents=True)
    stems = [f"{number:05}" for number in random.permutation(90_000)[: sum(splits.values())] + 1]
    left = iter(stems)
    for split, count in splits.items():
        lines = []
        for row, stem in enumerate(islice(left, count)):
            pixels = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / f"{stem}.png")
            text = " ".join(random.choice(WORDS, 5))
            meme = {"id": stem, "img": f"img/{stem}.png", "label": row % 2, "text": text}
            lines.append(json.dumps(meme, ensure_ascii=False))
        _write_lines(annotations / f"{split}.jsonl", lines)
    return stems


def build_features(path: Path, stems: list[str]) -> None:
    """Region features as MMF's LMDB: a pickled record for each image, and their keys under ``keys``."""
    import lmdb
    import numpy as np

    random = np.random.default_rng(0)
    path.mkdir(parents=True)
    keys = [stem.encode() for stem in stems]
    # create=True would make the folder, on Windows under a name in the ANSI code page.
    with (
        lmdb.open(str(path), map_size=256 * 2**20, create=False) as env,
        env.begin(write=True) as transaction,
    ):
        transaction.put(b"keys", pickle.dumps(keys))
        for key in keys:
            info = npy.info(BOXES, classes=CLASSES, seed=int(random.integers(1000)))
            features = random.standard_normal((BOXES, FEATURES), dtype=np.float32)
            record = {**info, "feature_path": key.decode(), "features": features}
            transaction.put(key, pickle.dumps(record))
    with lmdb.open(str(path), readonly=True, lock=False) as env:
        used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    os.truncate(path / "data.mdb", used)  # Windows makes it as large as the map


def build_word_vectors(path: Path) -> None:
    """GloVe's text format with 300 numbers a word."""
    import numpy as np

    random = np.random.default_rng(0)
    _write_lines(path, (" ".join([w, *(f"{x:.4f}" for x in random.standard_normal(300))]) for w in WORDS))


def build_fc7(folder: Path) -> None:
    """The last layer of the detector, which models with features fine-tune, with fewer outputs."""
    import numpy as np

    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, shape in {"fc7_w.pkl": (FC7, FEATURES), "fc7_b.pkl": (FC7,)}.items():
        weights = random.standard_normal(shape).astype(np.float32) / 50
        (folder / name).write_bytes(pickle.dumps(weights))


def build_bert(folder: Path) -> None:
    """A BERT of two layers with random weights, its heads and its vocabulary, by transformers in a child."""
    code = f"write_bert(Path({str(folder)!r}), {WORDS!r}, 0, **{BERT_SIZES!r})"
    imports = "from pathlib import Path; from mmf_win.worker.tiny_bert import write_bert"
    subprocess.run([sys.executable, "-c", f"{imports}; {code}"], check=True)


def unlabel(world: TinyWorld, root: Path, split: str = "test_unseen") -> TinyWorld:
    """A copy of a world in which a split has no labels."""
    copy = world.copy(root)
    path = copy.dataset / "annotations" / f"{split}.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({key: value for key, value in row.items() if key != "label"}) for row in rows]
    _write_lines(path, lines)
    return copy


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
