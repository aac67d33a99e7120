"""CLIP's two towers, frozen, and a small head over what they say of the image and the text.

After Hate-CLIPper (arXiv:2210.05916): each tower's pooled output is projected to the same length and scaled
to 1; then both are multiplied element by element (``align``) or joined (``concat``), for an MLP.

Its configuration ``model_config.clip``::

    clip_model_name   a CLIP on the Hugging Face Hub, as owner/name or owner/name@revision, or in a folder
    unfreeze          how many of the last layers of each tower train; all of a tower that has no more
    fusion            align or concat
    projection_dim    numbers to which both outputs are projected
    num_layers        layers of the MLP before the last, each with projection_dim numbers
    dropout           shares dropped after the projections, before the MLP, and after each of its layers
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
_MAX_OUTPUTS_IN_MEMORY = 1 << 15  # outputs, of some kilobytes each


def pretrained_arguments(name: str) -> dict[str, str]:
    """The arguments by which transformers finds a model, or its tokenizer, as a configuration names it."""
    own, _, revision = name.partition("@")
    if Path(name).is_dir() or not revision:
        return {"pretrained_model_name_or_path": name}
    return {"pretrained_model_name_or_path": own, "revision": revision}


def _load_clip(name: str) -> Any:
    """The CLIPModel of a name; DataError where its weights leave a part of a tower as it was made."""
    clip, told = CLIPModel.from_pretrained(**pretrained_arguments(name), output_loading_info=True)
    wrong = [*told["missing_keys"], *(str(each[0]) for each in told["mismatched_keys"])]
    if lost := [key for key in wrong if key.startswith(("vision_model.", "text_model."))]:
        message = f"{name}: its weights have not all tensors of its configuration: {summarize_list(lost)}"
        raise DataError(message, hint="model_config.clip.clip_model_name names a whole one")
    return clip


def _require_valid_config(config: Any) -> None:
    """Raise UsageError where a value of the configuration cannot be meant."""
    whole = {"unfreeze": 0, "projection_dim": 1, "num_layers": 0}
    wrong = {
        key: f"a whole number of {least} or more"
        for key, least in whole.items()
        if type(config[key]) is not int or config[key] < least
    }
    if config.fusion not in _FUSIONS:
        wrong["fusion"] = " or ".join(_FUSIONS)
    shares = config.dropout if OmegaConf.is_list(config.dropout) else ()
    if len(shares) != 3 or not all(isinstance(share, (int, float)) and 0 <= share <= 1 for share in shares):
        wrong["dropout"] = "three numbers from 0 to 1, as [0.1,0.4,0.2]"
    for key, wanted in wrong.items():
        raise UsageError(f"model_config.clip.{key} cannot be {config[key]!r}", hint=f"write {wanted}")


class Tower(nn.Module):
    """One of CLIP's transformers, pooled: a row of pixels or tokens → a vector.

    Frozen, it sees each row alone, whatever the batch is, and keeps the vector by a hash of the weights, the
    configuration and the row: in memory, and on the disk if there is a cache.

    Args:
        model: a transformer of CLIPModel.
        unfreeze: how many of its last layers train.
        cache: where outputs are kept; None for nowhere.
    """

    def __init__(self, model: Any, unfreeze: int, cache: DiskCache | None) -> None:
        super().__init__()
        self.model, self.is_frozen, self._cache = model, unfreeze < 1, cache
        layers = list(model.encoder.layers)
        last = getattr(model, "post_layernorm", None) or model.final_layer_norm
        model.requires_grad_(unfreeze >= len(layers))
        for part in [] if self.is_frozen else [*layers[-unfreeze:], last]:
            part.requires_grad_(True)
        self._outputs: dict[str, bytes] = {}
        self.register_load_state_dict_post_hook(Tower._clear_outputs)  # type: ignore[no-untyped-call]

    def _clear_outputs(self, *_: object) -> None:
        self._outputs = {}
        self.__dict__.pop("_cache_key_parts", None)

    def train(self, mode: bool = True) -> Tower:
        """A frozen tower drops nothing."""
        return super().train(mode and not self.is_frozen)

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Vectors [batch, width] of pixels [batch, 3, height, width] or of token ids [batch, tokens].

        ``lengths`` [batch] are those of the texts: no token after its end changes a text's vector.
        """
        if not self.is_frozen or torch.compiler.is_compiling():
            return self._compute_outputs(rows)
        each: Iterable[Tensor] = rows
        if lengths is not None:
            each = (row[:length] for row, length in zip(rows, lengths.tolist(), strict=True))
        with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
            return torch.stack([self._cached_output(row) for row in each])

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
                self._outputs[key] = self._cache.get_or_compute(
                    (*self._cache_key_parts, content.shape, key), compute
                )
        return torch.frombuffer(bytearray(self._outputs[key]), dtype=torch.float32).to(row.device)

    @cached_property
    def _cache_key_parts(self) -> tuple[str, ...]:
        """What an output depends on beside its row."""
        weights = hashlib.sha256()
        for name, value in self.model.state_dict().items():
            weights.update(name.encode())
            weights.update(value.cpu().contiguous().numpy())
        of_model = {key: value for key, value in self.model.config.to_dict().items() if key[0] != "_"}
        config = json.dumps(of_model, sort_keys=True, default=str)
        versions = (f"torch {torch.__version__}", f"transformers {transformers.__version__}")
        return weights.hexdigest(), config, next(self.parameters()).device.type, *versions


class Clip(BaseModel):  # type: ignore[misc]
    """See the module.

    Attributes:
        cache_folder: where outputs of frozen towers are kept; None to keep them in memory alone.
    """

    cache_folder: Path | None = None

    def build(self) -> None:
        """Load CLIP, and make a new head."""
        config, width = self.config, self.config.projection_dim
        _require_valid_config(config)
        clip = _load_clip(config.clip_model_name)
        cache = None
        if self.cache_folder is not None:
            evict_if_nearly_full(self.cache_folder)
            cache = DiskCache(self.cache_folder)
        self.image = Tower(clip.vision_model, config.unfreeze, cache)
        self.text = Tower(clip.text_model, config.unfreeze, cache)
        after_projection, before, after_layer = config.dropout
        self.project_image = nn.Linear(clip.config.vision_config.hidden_size, width)
        self.project_text = nn.Linear(clip.config.text_config.hidden_size, width)
        self.dropout = nn.Dropout(after_projection)
        layers: list[nn.Module] = [nn.Dropout(before)]
        given = width * (2 if config.fusion == "concat" else 1)
        for _ in range(config.num_layers):
            layers += [nn.Linear(given, width), nn.ReLU(), nn.Dropout(after_layer)]
            given = width
        self.classifier = nn.Sequential(*layers, nn.Linear(given, config.num_labels))

    def forward(self, sample_list: Any) -> dict[str, Tensor]:
        """``scores`` [batch, labels] of ``image``, ``input_ids`` and ``input_mask``."""
        image = self.image(sample_list.image)
        text = self.text(sample_list.input_ids, sample_list.input_mask.sum(1))
        image, text = self.dropout(self.project_image(image)), self.dropout(self.project_text(text))
        fused = _FUSIONS[self.config.fusion](normalize(image), normalize(text))
        return {"scores": self.classifier(fused)}


@registry.register_processor("clip_tokenizer")
class ClipTokenizer(BaseProcessor):  # type: ignore[misc]
    """Makes tokens of a text, configured as MMF's ``bert_tokenizer``."""

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(**pretrained_arguments(config.tokenizer_config.type))
        self._max_seq_length = config.max_seq_length
        self._CLS_TOKEN, self._SEP_TOKEN = self._tokenizer.bos_token, self._tokenizer.eos_token

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        """``input_ids`` and ``input_mask`` [max_seq_length] of a ``text``, with its first and last token."""
        made = self._tokenizer(
            item["text"],
            truncation=True,
            padding="max_length",
            max_length=self._max_seq_length,
            return_tensors="pt",
        )
        return {
            "input_ids": made["input_ids"][0],
            "input_mask": made["attention_mask"][0],
            "text": item["text"],
        }


def register(image_cache_dir: str | None) -> None:
    """Register the model with MMF, with a cache beside that of ``images`` if there is one."""
    cache_folder = Path(image_cache_dir).with_name("mmfw-outputs") if image_cache_dir is not None else None
    registry.register_model("clip")(type("Clip", (Clip,), {"cache_folder": cache_folder}))
