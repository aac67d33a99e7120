"""Small data, word vectors and models with which the real MMF trains in seconds.

They are seeded, take a few megabytes and have the formats of the real files. The recipes are the published baselines
and the models of the newest MMF at matching sizes.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from mmf_win.runs import presets
from tests.worlds import feature_files

WORDS = (*("a", "the", "cat", "dog", "tree", "love", "hate", "good", "bad", "this", "you"), *("café", "смех", "世界"))
SPLIT_SIZES = {"train": 14, "dev_seen": 4, "dev_unseen": 5, "test_seen": 4, "test_unseen": 5}
BOX_COUNT = 10  # boxes per image; real images have 100
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)  # vocabulary of the BERT
HIDDEN, LAYERS, HEADS, INTERMEDIATE_SIZE, POSITIONS = 32, 2, 4, 64, 64  # sizes of the BERT
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
BERT_SIZES = SIZES | {
    "intermediate_size": INTERMEDIATE_SIZE,
    "max_position_embeddings": POSITIONS,
    "vocab_size": len(TOKENS),
}
FEATURE_SIZE = 2048  # numbers per box; fixed in MMF's configurations
FC7_SIZE = 24  # the real layer has 2048
BERT = "bert-base-uncased"  # name in MMF's configurations
CLIP = "owner/clip@0123456789abcdef0123456789abcdef01234567"
COMMIT = "86b5e0934494bd15c9632b12f734a8a67f723594"
CLASS_COUNT = 1601  # classes of the detector that extracted the real features
Settings = dict[str, Any]


class TinyWorld:
    """Folder of the data, caches and models.

    Args:
        root: Folder of all other folders.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"  # for MMF_DATA_DIR
        self.cache = root / "cache"  # for MMF_CACHE_DIR; holds the GloVe file
        self.models = root / "hf"  # for HF_HOME
        # BERT of two layers, in the cache of transformers.
        self.bert = self.models / "hub" / f"models--{BERT}" / "snapshots" / COMMIT
        self.clip = self.models / "hub" / "models--owner--clip" / "snapshots" / CLIP.partition("@")[2]
        self.dataset = self.data / "datasets" / "hateful_memes" / "defaults"

    def copy(self, root: Path) -> TinyWorld:
        """Copy the world to another folder, so that a test can change it."""
        return TinyWorld(Path(shutil.copytree(self.root, root)))

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that MMF needs, with all downloads disabled."""
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
    """Build the world in ``root``, which is created if necessary."""
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
    build_models(world)
    refs = world.bert.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT, encoding="utf-8")
    return world


def build_dataset(root: Path, splits: Mapping[str, int] = SPLIT_SIZES) -> list[str]:
    """Write annotations with labels and images in MMF's layout, and return the stems of the images."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    images = root / "images" / "img"
    annotations = root / "annotations"
    for folder in (images, annotations):
        folder.mkdir(parents=True)
    stems = [f"{number:05}" for number in random.permutation(90_000)[: sum(splits.values())] + 1]
    unused_stems = iter(stems)
    for split, count in splits.items():
        lines = []
        for row, stem in enumerate(islice(unused_stems, count)):
            pixels = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / f"{stem}.png")
            text = " ".join(random.choice(WORDS, 5))
            meme = {"id": stem, "img": f"img/{stem}.png", "label": row % 2, "text": text}
            lines.append(json.dumps(meme, ensure_ascii=False))
        _write_lines(annotations / f"{split}.jsonl", lines)
    return stems


def build_features(path: Path, stems: list[str]) -> None:
    """Write region features as MMF's LMDB: a pickled record per image, and the list of keys under ``keys``."""
    import lmdb
    import numpy as np

    random = np.random.default_rng(0)
    path.mkdir(parents=True)
    keys = [stem.encode() for stem in stems]
    # On Windows, create=True would create the folder under a name in the ANSI code page.
    with lmdb.open(str(path), map_size=1 << 28, create=False) as env, env.begin(write=True) as transaction:
        transaction.put(b"keys", pickle.dumps(keys))
        for key in keys:
            info = feature_files.make_info(BOX_COUNT, classes=CLASS_COUNT, seed=int(random.integers(1000)))
            features = random.standard_normal((BOX_COUNT, FEATURE_SIZE), dtype=np.float32)
            record = {**info, "feature_path": key.decode(), "features": features}
            transaction.put(key, pickle.dumps(record))
    with lmdb.open(str(path), readonly=True, lock=False) as env:
        used_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    os.truncate(path / "data.mdb", used_bytes)  # on Windows the file is as large as the map


def build_word_vectors(path: Path) -> None:
    """Write word vectors in GloVe's text format, with 300 numbers per word."""
    import numpy as np

    random = np.random.default_rng(0)
    _write_lines(path, (" ".join([w, *(f"{x:.4f}" for x in random.standard_normal(300))]) for w in WORDS))


def build_fc7(folder: Path) -> None:
    """Write the detector's last layer, which models with features fine-tune, with fewer outputs."""
    import numpy as np

    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, shape in {"fc7_w.pkl": (FC7_SIZE, FEATURE_SIZE), "fc7_b.pkl": (FC7_SIZE,)}.items():
        weights = random.standard_normal(shape).astype(np.float32) / 50
        (folder / name).write_bytes(pickle.dumps(weights))


def build_bert(folder: Path) -> None:
    """Write a BERT of two layers with random weights, its heads and its vocabulary, in a child process."""
    _write_models(_write_bert_call(folder))


def build_models(world: TinyWorld) -> None:
    """Write the BERT, and a CLIP of two layers for images of 32 pixels with its tokenizer, in one child process."""
    sizes = {**SIZES, "intermediate_size": INTERMEDIATE_SIZE, "projection_dim": 16}
    text = {**sizes, "max_position_embeddings": POSITIONS}
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    clip = f"write_clip(Path({str(world.clip)!r}), {WORDS!r}, 0, {text!r}, {vision!r})"
    _write_models(_write_bert_call(world.bert), clip)


def _write_bert_call(folder: Path) -> str:
    return f"write_bert(Path({str(folder)!r}), {WORDS!r}, 0, **{BERT_SIZES!r})"


def _write_models(*calls: str) -> None:
    imports = "from pathlib import Path; from mmf_win.worker.tiny_models import write_bert, write_clip"
    subprocess.run([sys.executable, "-c", "; ".join([imports, *calls])], check=True)


def copy_without_labels(world: TinyWorld, root: Path, split: str = "test_unseen") -> TinyWorld:
    """Copy a world and remove the labels of a split."""
    copy = world.copy(root)
    path = copy.dataset / "annotations" / f"{split}.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({key: value for key, value in row.items() if key != "label"}) for row in rows]
    _write_lines(path, lines)
    return copy


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


class Recipe(NamedTuple):
    """Published baseline at a tiny size."""

    model: str
    config: str | None  # configuration of MMF into which the settings are merged
    settings: Settings


def recipes() -> dict[str, Recipe]:
    """Return the baselines that can be trained without downloads, by name, for both versions of MMF."""
    text = {"bert_model_name": BERT, "text_hidden_size": HIDDEN, "text_encoder": {"params": {**SIZES}}}
    image: Settings = {"modal_encoder": {"params": {"pretrained": False}}}
    regions: Settings = {"modal_hidden_size": FC7_SIZE}
    tokens = {"params": {"tokenizer_config": {"type": BERT}, "max_seq_length": 16}}
    complete_bert: Settings = {**BERT_SIZES, "bert_model_name": BERT}
    cnn: Settings = {
        "cnn": {"layers": {"input_dims": [3, 8], "output_dims": [8, 10], "kernel_sizes": [5, 5]}},
        "classifier": {"params": {"in_dim": 740}},
    }
    vilbert = complete_bert | {
        "v_hidden_size": HIDDEN,
        "v_num_hidden_layers": LAYERS,
        "v_num_attention_heads": HEADS,
        "v_intermediate_size": INTERMEDIATE_SIZE,
        "bi_hidden_size": HIDDEN,
        "bi_num_attention_heads": HEADS,
        "bi_intermediate_size": INTERMEDIATE_SIZE,
        "v_biattention_id": [0, 1],
        "t_biattention_id": [0, 1],
    }

    transforms = [
        {"type": "Resize", "params": {"size": [40, 40]}},
        {"type": "CenterCrop", "params": {"size": [32, 32]}},
        *("ToTensor", "GrayScaleTo3Channels"),
    ]

    def recipe(model: str, config: str, size: Settings, *, plain_words: bool = False) -> Recipe:
        processors: Settings = {"image_processor": {"params": {"transforms": transforms}}}
        if not plain_words:
            processors["text_processor"] = tokens
        dataset = {"max_features": BOX_COUNT, "processors": processors}
        settings = {"model_config": {model: size}, "dataset_config": {"hateful_memes": dataset}}
        return Recipe(model, f"projects/{config}.yaml", settings)

    clip: Settings = copy.deepcopy(presets.load_preset("clip_b32").settings)
    clip["model_config"]["clip"] |= {"clip_model_name": CLIP, "projection_dim": HIDDEN}
    processors = clip["dataset_config"]["hateful_memes"]["processors"]
    processors["text_processor"]["params"]["max_seq_length"] = 16
    processors["image_processor"]["params"]["transforms"][0]["params"]["size"] = [32, 32]
    del clip["training"]

    unimodal = "others/unimodal/configs/hateful_memes"
    return {
        "clip": Recipe("clip", None, clip),
        "concat_bow": recipe("concat_bow", "others/concat_bow/hateful_memes/defaults", image, plain_words=True),
        "image": recipe("unimodal_image", f"{unimodal}/image", image, plain_words=True),
        "regions": recipe("unimodal_image", f"{unimodal}/with_features", regions, plain_words=True),
        "text": recipe("unimodal_text", f"{unimodal}/text", {}, plain_words=True),
        "bert": recipe("unimodal_text", f"{unimodal}/bert", text),
        "cnn_lstm": recipe("cnn_lstm", "others/cnn_lstm/hateful_memes/defaults", cnn, plain_words=True),
        "concat_bert": recipe("concat_bert", "others/concat_bert/hateful_memes/defaults", text | image),
        "late_fusion": recipe("late_fusion", "others/late_fusion/hateful_memes/defaults", text | image),
        "mmbt": recipe("mmbt", "mmbt/configs/hateful_memes/defaults", text | image),
        "mmbt_regions": recipe("mmbt", "mmbt/configs/hateful_memes/with_features", text | regions),
        "visual_bert": recipe("visual_bert", "visual_bert/configs/hateful_memes/direct", complete_bert),
        "vilbert": recipe("vilbert", "vilbert/configs/hateful_memes/direct", vilbert),
    }


def rc12_recipes(world: TinyWorld) -> dict[str, Recipe]:
    """Return the models that only MMF 1.0.0rc12 has; for two of them, MMF has no Hateful Memes configuration."""
    tokens: Settings = {"type": BERT, "params": {"do_lower_case": True}}
    text: Settings = {"tokenizer_config": tokens, "mask_probability": 0, "max_seq_length": 16}
    bbox = {"bbox_key": "bbox", "image_width_key": "image_width", "image_height_key": "image_height"}
    lxmert: Settings = {**BERT_SIZES, "bert_model_name": BERT, "l_layers": 1, "x_layers": 1, "r_layers": 1}
    lxmert |= {"training_head_type": "classification", "num_labels": 2, "losses": ["cross_entropy"]}
    regions: Settings = {
        "use_features": True,
        "use_images": False,
        "return_features_info": True,
        "max_features": BOX_COUNT,
        "processors": {
            "text_processor": {"type": "bert_tokenizer", "params": text},
            "transformer_bbox_processor": {"type": "transformer_bbox", "params": bbox},
        },
    }
    # transformers reads this configuration to build a vision transformer with random weights.
    vit = SIZES | {"model_type": "vit", "intermediate_size": INTERMEDIATE_SIZE, "image_size": 32, "patch_size": 16}
    folder = world.root / "vit"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(vit), encoding="utf-8")
    image_encoder: Settings = SIZES | {
        "random_init": True,
        "image_size": [32, 32],
        "patch_size": 16,
        "hidden_dim": HIDDEN,
        "intermediate_size": INTERMEDIATE_SIZE,
        "mlp_dim": INTERMEDIATE_SIZE,
        "pretrained_model_name": str(folder),
    }
    head = {"type": "mlp", "loss": "loss", "in_dim": HIDDEN, "hidden_size": HIDDEN, "num_labels": 2}
    text_embeddings = {"bert_model_name": BERT, "hidden_size": HIDDEN, "hidden_dim": HIDDEN}
    vilt: Settings = {
        "tasks": "hateful_memes",
        "heads": {"hateful_memes": [head | {"pooler_name": "bert_pooler"}]},
        "losses": {"loss": "cross_entropy"},
        "image_encoder": {"type": "vit", "params": image_encoder},
        "text_embeddings": text_embeddings | {"max_position_embeddings": POSITIONS},
    }
    tokenizer = {"from_pretrained": BERT, "mask_probability": 0, "max_seq_length": 16}
    vilt_dataset: Settings = {
        "processors": {
            "text_processor": {"type": "vilt_text_tokenizer", "params": tokenizer},
            "image_processor": {"type": "vilt_image_processor", "params": {"size": [32, 32]}},
        }
    }

    def recipe(model: str, values: Settings, dataset: Settings) -> Recipe:
        settings: Settings = {
            "model_config": {model: values},
            "dataset_config": {"hateful_memes": dataset},
            "optimizer": {"type": "adam_w", "params": {"lr": 1e-4}},
            "evaluation": {"metrics": ["accuracy", "binary_f1", "roc_auc"]},
        }
        return Recipe(model, f"configs/models/{model}/defaults.yaml", settings)

    modality = {"layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1}
    resnet = {"pretrained": False, "pool_type": "avg", "num_output_features": 1}
    texts = {"type": "text", "key": "text", "position_dim": POSITIONS, "segment_id": 0}
    images = {"type": "image", "key": "image", "position_dim": 1, "segment_id": 1}
    encoder = {"type": "resnet152", "params": resnet}
    transformer: Settings = {
        "transformer_base": BERT,
        "backend": {"params": {**SIZES, "max_position_embeddings": POSITIONS}},
        "heads": [{"type": "mlp", "hidden_size": HIDDEN, "num_labels": 2}],
        "modalities": [
            {**texts, **modality, "embedding_dim": HIDDEN},
            {**images, **modality, "embedding_dim": FEATURE_SIZE, "encoder": encoder},
        ],
    }
    return {
        "lxmert": recipe("lxmert", lxmert, regions),
        "vilt": recipe("vilt", vilt, vilt_dataset),
        "mmf_transformer": Recipe(
            "mmf_transformer",
            "projects/hateful_memes/configs/mmf_transformer/defaults.yaml",
            {**recipes()["mmbt"].settings, "model_config": {"mmf_transformer": transformer}},
        ),
    }
