"""The user's ``KEY=VALUE`` overrides over the life of a run; MMF gets them last."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_DATASET = "dataset_config.hateful_memes"
ANNOTATIONS = f"{_DATASET}.annotations"
"""The key that says where annotations are."""
BATCH_SIZE = frozenset({"training.batch_size", "training.batch_size_per_device"})
"""The keys of which either names the rows of a batch."""
OWN_MEMES = frozenset({ANNOTATIONS, f"{_DATASET}.images"})
"""The keys that say where memes are."""
PRECISION = frozenset({"training.fp16"})
"""The key that says what the model calculates with."""
TOTAL = frozenset({"training.max_updates", "training.max_epochs"})
"""The keys of which either ends training."""
USER_DIR = "env.user_dir"
"""The key that says where code of the user's own is."""
FEATURES = frozenset({f"{_DATASET}.features"})
"""The key that says where region features are."""

# What started a run must not steer where it resumes from.
_OF_THE_START = ("checkpoint.resume", "checkpoint.reset", "checkpoint.zoo_config_override")
# A prediction sets these, or does without.
_NOT_OF_PREDICTION = frozenset(
    {
        ANNOTATIONS,
        "run_type",
        "optimizer",
        "scheduler",
        "training.max_updates",
        "training.max_epochs",
        "training.early_stop",
        "evaluation.predict",
        "evaluation.predict_file_format",
        "evaluation.reporter",
        "checkpoint",
    }
)


def lasting(overrides: Sequence[str], replaced: Collection[str] = ()) -> list[str]:
    """Those of a run's overrides that still hold when it resumes.

    Args:
        overrides: what the run was started with.
        replaced: keys, and groups of keys, that are set now.
    """
    return [kept for kept in without(overrides, replaced) if not kept.startswith(_OF_THE_START)]


def of_prediction(overrides: Sequence[str], replaced: Collection[str] = ()) -> list[str]:
    """Those of a run's overrides that still hold when it is predicted; arguments as for :func:`lasting`."""
    return without(lasting(overrides, replaced), _NOT_OF_PREDICTION)


def without(overrides: Sequence[str], keys: Collection[str]) -> list[str]:
    """The overrides that set none of ``keys``, nor a part of one."""
    return [override for override in overrides if set_by(override, keys) is None]


def about_files(overrides: Sequence[str]) -> list[str]:
    """The overrides that may change which files a run reads."""
    groups = ("checkpoint.", "dataset_config.", "env.", "model_config.")
    return [override for override in overrides if override.startswith(groups)]


def key_of(override: str) -> str:
    """The part of ``KEY=VALUE`` before the first ``=``."""
    return override.partition("=")[0]


def set_by(override: str, keys: Collection[str]) -> str | None:
    """The key among ``keys`` that an override sets, or the group among them that it sets a part of."""
    fields = re.sub(r"\[[^\]]*\]", "", key_of(override)).split(".")
    above = (".".join(fields[:length]) for length in range(len(fields), 0, -1))
    return next((key for key in above if key in keys), None)
