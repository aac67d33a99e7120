"""CLIP's two encoders, frozen by default, with a small head on their outputs.

After Hate-CLIPper (arXiv:2210.05916): the pooled outputs are projected to the same size and normalized to
length 1; then they are multiplied element by element (``align``) or concatenated (``concat``) for an MLP.

Its configuration ``model_config.clip``::

    clip_model_name   a CLIP model on the Hugging Face Hub (owner/name or owner/name@revision), or a folder
    unfreeze          number of last layers of each encoder to train; all if an encoder has fewer
    fusion            align or concat
    projection_dim    size of the projected outputs
    num_layers        layers of the MLP before the last one, each of size projection_dim
    dropout           dropout after the projections, before the MLP, and after each of its layers
    num_labels, losses
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from mmf.common.registry import registry
from mmf.datasets.processors.processors import BaseProcessor
from mmf.models.base_model import BaseModel
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoTokenizer, CLIPModel

from mmf_win.console import summarize_list
from mmf_win.errors import DataError, UsageError
from mmf_win.worker.disk_cache import DiskCache, evict_if_nearly_full

_FUSIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "align": torch.mul,
    "concat": lambda image, text: torch.cat([image, text], 1),
}
_MAX_OUTPUTS_IN_MEMORY = 1 << 15  # a few kilobytes each


def pretrained_arguments(name: str) -> dict[str, str]:
    """Return the arguments of ``from_pretrained`` for a name in the configuration."""
    model_name, _, revision = name.partition("@")
    if Path(name).is_dir() or not revision:
        return {"pretrained_model_name_or_path": name}
    return {"pretrained_model_name_or_path": model_name, "revision": revision}


def _load_clip(name: str) -> Any:
    """Load a CLIP model.

    Returns:
        The CLIPModel.

    Raises:
        DataError: The file of weights does not contain all tensors of the encoders.
    """
    clip, loading_info = CLIPModel.from_pretrained(**pretrained_arguments(name), output_loading_info=True)
    unloaded = [*loading_info["missing_keys"], *(str(key) for key, *_ in loading_info["mismatched_keys"])]
    if missing := [key for key in unloaded if key.startswith(("vision_model.", "text_model."))]:
        message = f"{name}: tensors of its configuration are missing: {summarize_list(missing)}"
        raise DataError(message, hint="set model_config.clip.clip_model_name to a complete model")
    return clip


def _require_valid_config(config: Any) -> None:
    """Check the values of the configuration.

    Raises:
        UsageError: A value is invalid.
    """
    min_values = {"unfreeze": 0, "projection_dim": 1, "num_layers": 0}
    requirements = {
        key: f"an integer of {minimum} or more"
        for key, minimum in min_values.items()
        if type(config[key]) is not int or config[key] < minimum
    }
    if config.fusion not in _FUSIONS:
        requirements["fusion"] = " or ".join(_FUSIONS)
    shares = config.dropout if OmegaConf.is_list(config.dropout) else ()
    if len(shares) != 3 or not all(isinstance(share, (int, float)) and 0 <= share <= 1 for share in shares):
        requirements["dropout"] = "three numbers from 0 to 1, such as [0.1,0.4,0.2]"
    for key, requirement in requirements.items():
        raise UsageError(f"model_config.clip.{key} cannot be {config[key]!r}", hint=f"use {requirement}")


class Tower(nn.Module):
    """One of CLIP's transformers with pooling: a row of pixels or tokens → a vector.

    A frozen tower processes each row alone, independent of the batch, and stores the vector under a hash of
    the weights, the configuration and the row: in memory, and on disk if there is a cache.

    Args:
        model: A transformer of CLIPModel.
        unfreeze: Number of last layers to train.
        cache: Cache of outputs on disk, or ``None``.
    """

    def __init__(self, model: Any, unfreeze: int, cache: DiskCache | None) -> None:
        super().__init__()
        self.model, self.is_frozen, self._cache = model, unfreeze < 1, cache
        layers = list(model.encoder.layers)
        final_norm = getattr(model, "post_layernorm", None) or model.final_layer_norm
        model.requires_grad_(unfreeze >= len(layers))
        for part in [] if self.is_frozen else [*layers[-unfreeze:], final_norm]:
            part.requires_grad_()
        self._outputs: dict[str, bytes] = {}
        self.register_load_state_dict_post_hook(Tower._clear_outputs)  # type: ignore[no-untyped-call]

    def _clear_outputs(self, *_: object) -> None:
        self._outputs = {}
        self.__dict__.pop("_cache_key_parts", None)

    def train(self, mode: bool = True) -> Tower:
        """Set the training mode; a frozen tower never applies dropout."""
        return super().train(mode and not self.is_frozen)

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the vectors of a batch.

        Args:
            rows: Pixels [batch, 3, height, width] or token IDs [batch, tokens].
            lengths: Lengths of the texts, [batch]; tokens after the end of a text do not affect its vector.

        Returns:
            Vectors [batch, width].
        """
        if not self.is_frozen or torch.compiler.is_compiling():
            return self._compute_outputs(rows)
        trimmed_rows: Iterable[Tensor] = rows
        if lengths is not None:
            trimmed_rows = (row[:length] for row, length in zip(rows, lengths.tolist(), strict=True))
        with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
            return torch.stack([self._cached_output(row) for row in trimmed_rows])

    def _compute_outputs(self, rows: Tensor) -> Tensor:
        pooled: Tensor = self.model(rows).pooler_output
        return pooled

    def _cached_output(self, row: Tensor) -> Tensor:
        content = row.cpu().contiguous().numpy()
        key = hashlib.sha256(content.data).hexdigest()

        def compute() -> bytes:
            return bytes(self._compute_outputs(row[None])[0].float().cpu().numpy().tobytes())

        if key not in self._outputs:
            if len(self._outputs) >= _MAX_OUTPUTS_IN_MEMORY:
                self._outputs.clear()
            if self._cache is None:
                self._outputs[key] = compute()
            else:
                self._outputs[key] = self._cache.get_or_compute((*self._cache_key_parts, content.shape, key), compute)
        return torch.frombuffer(bytearray(self._outputs[key]), dtype=torch.float32).to(row.device)

    @cached_property
    def _cache_key_parts(self) -> tuple[str, ...]:
        """Everything that an output depends on except its row."""
        weights = hashlib.sha256()
        for name, value in self.model.state_dict().items():
            weights.update(name.encode())
            weights.update(value.cpu().contiguous().numpy())
        model_config = {key: value for key, value in self.model.config.to_dict().items() if key[0] != "_"}
        config = json.dumps(model_config, sort_keys=True, default=str)
        versions = (f"torch {torch.__version__}", f"transformers {transformers.__version__}")
        return weights.hexdigest(), config, next(self.parameters()).device.type, *versions


class Clip(BaseModel):  # type: ignore[misc]
    """Model with two encoders and a head, as described at the top of this module.

    Attributes:
        cache_folder: Cache folder for outputs of frozen towers; ``None`` to keep them in memory only.
    """

    cache_folder: Path | None = None

    def build(self) -> None:
        """Load CLIP and create a new head."""
        config, width = self.config, self.config.projection_dim
        _require_valid_config(config)
        clip = _load_clip(config.clip_model_name)
        cache = None
        if self.cache_folder is not None:
            evict_if_nearly_full(self.cache_folder)
            cache = DiskCache(self.cache_folder)
        self.image = Tower(clip.vision_model, config.unfreeze, cache)
        self.text = Tower(clip.text_model, config.unfreeze, cache)
        after_projection, before_mlp, after_layer = config.dropout
        self.project_image = nn.Linear(clip.config.vision_config.hidden_size, width)
        self.project_text = nn.Linear(clip.config.text_config.hidden_size, width)
        self.dropout = nn.Dropout(after_projection)
        layers: list[nn.Module] = [nn.Dropout(before_mlp)]
        input_width = width * (2 if config.fusion == "concat" else 1)
        for _ in range(config.num_layers):
            layers += [nn.Linear(input_width, width), nn.ReLU(), nn.Dropout(after_layer)]
            input_width = width
        self.classifier = nn.Sequential(*layers, nn.Linear(input_width, config.num_labels))

    def forward(self, sample_list: Any) -> dict[str, Tensor]:
        """Return ``scores`` [batch, labels] from ``image``, ``input_ids`` and ``input_mask``."""
        image = self.image(sample_list.image)
        text = self.text(sample_list.input_ids, sample_list.input_mask.sum(1))
        image, text = self.dropout(self.project_image(image)), self.dropout(self.project_text(text))
        fused = _FUSIONS[self.config.fusion](normalize(image), normalize(text))
        return {"scores": self.classifier(fused)}


@registry.register_processor("clip_tokenizer")
class ClipTokenizer(BaseProcessor):  # type: ignore[misc]
    """Tokenizer with the configuration of MMF's ``bert_tokenizer``."""

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(**pretrained_arguments(config.tokenizer_config.type))
        self._max_seq_length = config.max_seq_length
        self._CLS_TOKEN, self._SEP_TOKEN = self._tokenizer.bos_token, self._tokenizer.eos_token

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return ``input_ids`` and ``input_mask`` [max_seq_length] of ``text``, with start and end tokens."""
        encoded = self._tokenizer(
            item["text"], truncation=True, padding="max_length", max_length=self._max_seq_length, return_tensors="pt"
        )
        return {"input_ids": encoded["input_ids"][0], "input_mask": encoded["attention_mask"][0], "text": item["text"]}


def register(image_cache_dir: str | None) -> None:
    """Register the model with MMF; its cache is next to the image cache, if there is one."""
    cache_folder = Path(image_cache_dir).with_name("mmfw-outputs") if image_cache_dir is not None else None
    registry.register_model("clip")(type("Clip", (Clip,), {"cache_folder": cache_folder}))
