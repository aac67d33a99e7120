"""Patches for bugs in MMF's models and their training."""

from __future__ import annotations

import json
from pathlib import Path

from mmf_win.compat.patch import RC12, Edit, Patch, single_edit

_TRAINING_LOOP = "mmf.trainers.core.training_loop"


def _hub_cache() -> str:
    """Return the default cache folder of transformers."""
    from transformers.utils.hub import TRANSFORMERS_CACHE

    return str(Path(TRANSFORMERS_CACHE).absolute())


def _is_hub_offline() -> bool:
    """Return whether requests to the Hugging Face Hub are disabled, so that retries are useless."""
    from transformers.utils import is_offline_mode

    return bool(is_offline_mode())


def is_bert(name: str) -> bool:
    """Return whether a model name, or a folder with a model in transformers' format, is a BERT."""
    config = Path(name, "config.json")
    if config.is_file():
        return bool(json.loads(config.read_text(encoding="utf-8")).get("model_type") == "bert")
    return name.startswith("bert-")


PATCHES = (
    Patch(
        name="seed-0",
        problem="set_seed: ignores the seed 0, so random numbers differ each time",
        edits=single_edit("mmf.utils.env", "if seed:", "if seed is not None:"),
    ),
    Patch(
        name="bert-cache",
        problem="VisualBERT, ViLBERT, MMBT, …: download a BERT again into MMF's cache",
        edits=tuple(
            # MMF joins its cache folder with this; an absolute path replaces it.
            Edit(f"mmf.{module}", '"distributed_{}".format(-1)', "hub_cache()", {"hub_cache": _hub_cache})
            for module in (
                "modules.encoders",
                "models.krisp",
                "models.lxmert",
                "models.mmbt",
                "models.vilbert",
                "models.visual_bert",
            )
        ),
    ),
    Patch(
        name="bert-names",
        problem="TransformerEncoder: loads a BERT from a folder as a class that the fusion models cannot use",
        mmf_versions=RC12,
        edits=single_edit(
            "mmf.modules.encoders",
            'self.config.bert_model_name.startswith("bert-")',
            "is_bert(self.config.bert_model_name)",
            is_bert=is_bert,
        ),
    ),
    Patch(
        name="retries-offline",
        problem="retry_n: waits 63 s for a model of the Hugging Face Hub even if the hub is disabled",
        mmf_versions=RC12,
        edits=single_edit(
            "mmf.utils.general",
            "            if count < n:",
            "            if count < n and not hub_is_offline():",
            hub_is_offline=_is_hub_offline,
        ),
    ),
    Patch(
        # The last batch of an epoch may have one or two rows.
        name="batch-of-one",
        problem="TextEmbeddingEncoder fails on one row; FusionBase, UnimodalBase (rc10) drop one of two rows",
        edits=(
            Edit("mmf.modules.encoders", "return x.squeeze()", "return x.squeeze(tuple(range(1, x.dim())))"),
            # MMF distinguishes a pair (sequence, pooled) from a tensor of two rows only by its length.
            Edit("mmf.models.fusions", "if len(text) == 2:", "if len(text) == 2 and not torch.is_tensor(text):"),
            Edit("mmf.models.unimodal", "if len(x) == 2:", "if len(x) == 2 and not torch.is_tensor(x):"),
        ),
    ),
    Patch(
        name="random-vocabulary",
        problem="BaseVocab: random word vectors are uninitialized memory and may contain NaN",
        edits=single_edit(
            "mmf.utils.vocab",
            "self.vectors = torch.FloatTensor(self.get_size(), embedding_dim)",
            # With a separate generator, so that other random numbers stay the same as without the patch.
            "self.vectors = torch.randn(self.get_size(), embedding_dim,"
            " generator=torch.Generator().manual_seed(torch.initial_seed()))",
        ),
    ),
    Patch(
        name="unlabelled-heads",
        problem="HeadsDict: fails on unlabelled rows, for which other models compute no loss",
        mmf_versions=RC12,
        edits=single_edit(
            "mmf.models.transformers.heads.utils",
            'output = self.losses[loss_name](sample_list, {"scores": logits})',
            'output = self.losses[loss_name](sample_list, {"scores": logits}) if "targets" in sample_list else {}',
        ),
    ),
    Patch(
        name="accumulation",
        problem="run_training_epoch: with update_frequency, the last update of an epoch divides by zero",
        mmf_versions=RC12,
        edits=(
            # MMF ends the last update of an epoch after its first batch and counts 0 batches for the rest.
            Edit(
                _TRAINING_LOOP,
                "and num_remaining_batches != num_batches_for_this_update",
                "and idx % self.training_config.update_frequency + 1 != num_batches_for_this_update",
            ),
            # A run that resumes within an epoch has fewer batches left; see worker/hooks/callback.py.
            Edit(
                _TRAINING_LOOP,
                "else len(self.train_loader)",
                'else getattr(self, "batches_left", self.train_loader.__len__)()',
            ),
        ),
    ),
)
