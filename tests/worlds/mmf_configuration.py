"""Configuration and zoo as the real MMF reads them, in a separate process.

``python -m tests.worlds.mmf_configuration MMF_ROOT < QUERIES`` builds MMF's ``Configuration`` for each query,
from a file as the worker writes it for an attempt. Of mmfw it applies only the patches.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from mmf_win.worker.entry import write_mmf_options

_TESTS_PARENT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ConfigQuery:
    """Configuration to build: MMF's configuration of a model, with the settings of a preset merged over it.

    The worker's file for it is written to ``folder``, by default a temporary folder.
    """

    model: str
    config: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    folder: str | None = None


def query_mmf(
    root: Path,
    queries: Sequence[ConfigQuery],
    zoo_keys: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the results of the real MMF in a folder, by default in the environment of this process.

    Returns:
        ``configurations``: for each query, the complete configuration or the name of the exception that was raised.
        ``zoo``: for each key and for the dataset, the version and the resources.
        ``models``: for each model, the configuration that its class names.
    """
    request = {"queries": [asdict(query) for query in queries], "zoo_keys": list(zoo_keys)}
    result = subprocess.run(
        [sys.executable, "-m", __name__, str(root)],
        input=json.dumps(request),
        cwd=_TESTS_PARENT,
        env=None if environment is None else dict(environment),
        capture_output=True,
        encoding="utf-8",
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return dict(json.loads(result.stdout.splitlines()[-1]))


def iter_leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each leaf of a tree."""
    if isinstance(node, Mapping) and (node or not prefix):
        for key in node:
            yield from iter_leaves(node[key], f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def answer_queries(root: Path, queries: dict[str, Any]) -> dict[str, Any]:
    """Answer the queries in this process; see :func:`query_mmf`."""
    from mmf_win import compat

    compat.install(root)
    from mmf.common.registry import registry
    from mmf.utils.configuration import Configuration, get_zoo_config
    from mmf.utils.env import setup_imports
    from omegaconf import OmegaConf

    setup_imports()
    configurations: list[Any] = []
    for query in (ConfigQuery(**values) for values in queries["queries"]):
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
                options = _query_options(root, query, query.folder or folder)
                configuration = Configuration(Namespace(config_override=None, opts=options))
                configurations.append(OmegaConf.to_container(configuration.get_config(), resolve=True))
        except Exception as error:
            configurations.append(type(error).__name__)
    zoo: dict[str, Any] = {}
    for kind, key in [("datasets", "hateful_memes"), *(("models", key) for key in queries["zoo_keys"])]:
        version, resources = get_zoo_config(key, zoo_type=kind)
        zoo[key] = [version, OmegaConf.to_container(resources) if OmegaConf.is_config(resources) else resources]
    registered = registry.mapping["model_name_mapping"].items()
    models = {name: model.config_path() for name, model in registered if "config_path" in vars(model)}
    return {"configurations": configurations, "zoo": zoo, "models": models}


def _query_options(root: Path, query: ConfigQuery, folder: str) -> list[str]:
    model, config, settings = query.model, query.config, query.settings
    return write_mmf_options(
        AttemptRequest(TrainTask(), model, str(root), attempt_dir=folder, settings=settings, base_config=config)
    )


if __name__ == "__main__":
    print("\n" + json.dumps(answer_queries(Path(sys.argv[1]), json.load(sys.stdin))))
