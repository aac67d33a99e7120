"""The published baselines, and models of the newest MMF, at a size in which they train in seconds."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.worlds.tiny_mmf import (
    BERT,
    BERT_SIZES,
    BOXES,
    FC7,
    FEATURES,
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    POSITIONS,
    SIZES,
    TinyWorld,
)

Settings = dict[str, Any]


class Recipe(NamedTuple):
    """One of the published baselines at a tiny size."""

    model: str
    config: str  # MMF's own, over which the settings are merged
    settings: Settings


def recipes() -> dict[str, Recipe]:
    """The baselines that can be trained without downloads, by name, for both versions of MMF."""
    text = {"bert_model_name": BERT, "text_hidden_size": HIDDEN, "text_encoder": {"params": {**SIZES}}}
    image: Settings = {"modal_encoder": {"params": {"pretrained": False}}}
    regions: Settings = {"modal_hidden_size": FC7}
    tokens = {"params": {"tokenizer_config": {"type": BERT}, "max_seq_length": 16}}
    whole_bert: Settings = {**BERT_SIZES, "bert_model_name": BERT}
    cnn: Settings = {
        "cnn": {"layers": {"input_dims": [3, 8], "output_dims": [8, 10], "kernel_sizes": [5, 5]}},
        "classifier": {"params": {"in_dim": 740}},
    }
    vilbert = whole_bert | {
        "v_hidden_size": HIDDEN,
        "v_num_hidden_layers": LAYERS,
        "v_num_attention_heads": HEADS,
        "v_intermediate_size": INNER,
        "bi_hidden_size": HIDDEN,
        "bi_num_attention_heads": HEADS,
        "bi_intermediate_size": INNER,
        "v_biattention_id": [0, 1],
        "t_biattention_id": [0, 1],
    }

    transforms = [
        {"type": "Resize", "params": {"size": [40, 40]}},
        {"type": "CenterCrop", "params": {"size": [32, 32]}},
        *("ToTensor", "GrayScaleTo3Channels"),
    ]

    def recipe(model: str, config: str, size: Settings, *, words: bool = False) -> Recipe:
        processors: Settings = {"image_processor": {"params": {"transforms": transforms}}}
        if not words:
            processors["text_processor"] = tokens
        dataset = {"max_features": BOXES, "processors": processors}
        settings = {"model_config": {model: size}, "dataset_config": {"hateful_memes": dataset}}
        return Recipe(model, f"projects/{config}.yaml", settings)

    unimodal = "others/unimodal/configs/hateful_memes"
    return {
        "concat_bow": recipe("concat_bow", "others/concat_bow/hateful_memes/defaults", image, words=True),
        "image": recipe("unimodal_image", f"{unimodal}/image", image, words=True),
        "regions": recipe("unimodal_image", f"{unimodal}/with_features", regions, words=True),
        "text": recipe("unimodal_text", f"{unimodal}/text", {}, words=True),
        "bert": recipe("unimodal_text", f"{unimodal}/bert", text),
        "cnn_lstm": recipe("cnn_lstm", "others/cnn_lstm/hateful_memes/defaults", cnn, words=True),
        "concat_bert": recipe("concat_bert", "others/concat_bert/hateful_memes/defaults", text | image),
        "late_fusion": recipe("late_fusion", "others/late_fusion/hateful_memes/defaults", text | image),
        "mmbt": recipe("mmbt", "mmbt/configs/hateful_memes/defaults", text | image),
        "mmbt_regions": recipe("mmbt", "mmbt/configs/hateful_memes/with_features", text | regions),
        "visual_bert": recipe("visual_bert", "visual_bert/configs/hateful_memes/direct", whole_bert),
        "vilbert": recipe("vilbert", "vilbert/configs/hateful_memes/direct", vilbert),
    }


def recipes_of_rc12(world: TinyWorld) -> dict[str, Recipe]:
    """Models that 1.0.0rc12 alone has, two of them with configurations that are not for Hateful Memes."""
    tokens: Settings = {"type": BERT, "params": {"do_lower_case": True}}
    text: Settings = {"tokenizer_config": tokens, "mask_probability": 0, "max_seq_length": 16}
    bbox = {"bbox_key": "bbox", "image_width_key": "image_width", "image_height_key": "image_height"}
    lxmert: Settings = {**BERT_SIZES, "bert_model_name": BERT, "l_layers": 1, "x_layers": 1, "r_layers": 1}
    lxmert |= {"training_head_type": "classification", "num_labels": 2, "losses": ["cross_entropy"]}
    regions: Settings = {
        "use_features": True,
        "use_images": False,
        "return_features_info": True,
        "max_features": BOXES,
        "processors": {
            "text_processor": {"type": "bert_tokenizer", "params": text},
            "transformer_bbox_processor": {"type": "transformer_bbox", "params": bbox},
        },
    }
    # What transformers reads of a vision transformer that begins with random weights.
    vit = SIZES | {"model_type": "vit", "intermediate_size": INNER, "image_size": 32, "patch_size": 16}
    folder = world.root / "vit"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(vit), encoding="utf-8")
    picture: Settings = SIZES | {
        "random_init": True,
        "image_size": [32, 32],
        "patch_size": 16,
        "hidden_dim": HIDDEN,
        "intermediate_size": INNER,
        "mlp_dim": INNER,
        "pretrained_model_name": str(folder),
    }
    head = {"type": "mlp", "loss": "loss", "in_dim": HIDDEN, "hidden_size": HIDDEN, "num_labels": 2}
    words = {"bert_model_name": BERT, "hidden_size": HIDDEN, "hidden_dim": HIDDEN}
    vilt: Settings = {
        "tasks": "hateful_memes",
        "heads": {"hateful_memes": [head | {"pooler_name": "bert_pooler"}]},
        "losses": {"loss": "cross_entropy"},
        "image_encoder": {"type": "vit", "params": picture},
        "text_embeddings": words | {"max_position_embeddings": POSITIONS},
    }
    pieces = {"from_pretrained": BERT, "mask_probability": 0, "max_seq_length": 16}
    pictures: Settings = {
        "processors": {
            "text_processor": {"type": "vilt_text_tokenizer", "params": pieces},
            "image_processor": {"type": "vilt_image_processor", "params": {"size": [32, 32]}},
        },
    }

    def recipe(model: str, values: Settings, dataset: Settings) -> Recipe:
        settings: Settings = {
            "model_config": {model: values},
            "dataset_config": {"hateful_memes": dataset},
            "optimizer": {"type": "adam_w", "params": {"lr": 1e-4}},
            "evaluation": {"metrics": ["accuracy", "binary_f1", "roc_auc"]},
        }
        return Recipe(model, f"configs/models/{model}/defaults.yaml", settings)

    part = {"layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1}
    resnet = {"pretrained": False, "pool_type": "avg", "num_output_features": 1}
    texts = {"type": "text", "key": "text", "position_dim": POSITIONS, "segment_id": 0}
    images = {"type": "image", "key": "image", "position_dim": 1, "segment_id": 1}
    encoder = {"type": "resnet152", "params": resnet}
    transformer: Settings = {
        "transformer_base": BERT,
        "backend": {"params": {**SIZES, "max_position_embeddings": POSITIONS}},
        "heads": [{"type": "mlp", "hidden_size": HIDDEN, "num_labels": 2}],
        "modalities": [
            {**texts, **part, "embedding_dim": HIDDEN},
            {**images, **part, "embedding_dim": FEATURES, "encoder": encoder},
        ],
    }
    return {
        "lxmert": recipe("lxmert", lxmert, regions),
        "vilt": recipe("vilt", vilt, pictures),
        "mmf_transformer": Recipe(
            "mmf_transformer",
            "projects/hateful_memes/configs/mmf_transformer/defaults.yaml",
            {**recipes()["mmbt"].settings, "model_config": {"mmf_transformer": transformer}},
        ),
    }
