"""What two runs were asked for differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mmf_win.errors import DataError
from mmf_win.runs.folder import Run

# What tells every run from every other, and nothing about its result.
_OF_EVERY_RUN = {"created", "published", "trust", "retry", "stop_timeout"}
_OF_THE_PLACE = ("mmf.env.", "mmf.config", "mmf.opts", "mmf.overrides")


def differences(first: Run, second: Run) -> dict[str, tuple[Any, Any]]:
    """Key → both values, for each that is not the same; None stands for a key that is not there.

    ``request.`` keys are what mmfw was asked for, ``mmf.`` keys the configuration that MMF made of it, where
    both runs came so far.

    Raises:
        DataError: a request or a configuration cannot be read.
    """
    settings = dict(_flat("request.", _request(first))), dict(_flat("request.", _request(second)))
    resolved = _resolved(first), _resolved(second)
    if None not in resolved:
        for known, config in zip(settings, resolved, strict=True):
            known.update(_flat("mmf.", config))
    keys = sorted(settings[0].keys() | settings[1].keys())
    pairs = {key: (settings[0].get(key), settings[1].get(key)) for key in keys}
    return {
        key: pair for key, pair in pairs.items() if pair[0] != pair[1] and not key.startswith(_OF_THE_PLACE)
    }


def _request(run: Run) -> dict[str, Any]:
    return {key: value for key, value in asdict(run.request()).items() if key not in _OF_EVERY_RUN}


def _resolved(run: Run) -> Any:
    """MMF's own ``config.yaml``, its references left as they are; None where there is none yet."""
    path = run.checkpoints / "config.yaml"
    if not path.is_file():
        return None
    from omegaconf import OmegaConf
    from yaml import YAMLError

    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (YAMLError, OSError, ValueError) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}") from None


def _flat(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, Mapping) or not tree:
        yield prefix.removesuffix("."), tree
        return
    for key, value in tree.items():
        yield from _flat(f"{prefix}{key}.", value)
