"""What the real MMF makes of its configuration: which keys it has, and what ``KEY=VALUE`` overrides do to it.

``python -m tests.worlds.mmf_words MMF_ROOT < QUESTIONS``, in a process of its own, as importing MMF changes
one. The questions are JSON: a list of [model, config or null, list of overrides]. So are the answers, a list
of {key: value}, or of an error's type for an override that is refused.
"""

from __future__ import annotations

import contextlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmf_win.upstream.settings import as_pairs
from mmf_win.upstream.versions import config_path, read_version
from mmf_win.worker import compat


def leaves(node: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every key below which there is no other, dotted, with its value."""
    if isinstance(node, Mapping) and (node or not above):
        for key in node:
            yield from leaves(node[key], f"{above}.{key}" if above else str(key))
    else:
        yield above, node


def main(root: Path, questions: list[list[Any]]) -> list[Any]:
    """The answers."""
    compat.install(root, read_version(root))
    from mmf.utils.configuration import Configuration
    from mmf.utils.env import setup_imports
    from omegaconf import OmegaConf

    setup_imports()
    answers: list[Any] = []
    for model, config, words in questions:
        chosen = ["config", str(config_path(root, config))] if config else []
        options = [*chosen, "model", model, "dataset", "hateful_memes", *as_pairs(words)]
        try:
            with contextlib.redirect_stdout(sys.stderr):
                made = Configuration(Namespace(config_override=None, opts=options)).config
        except Exception as error:
            answers.append(type(error).__name__)
        else:
            answers.append(dict(leaves(OmegaConf.to_container(made, resolve=False))))
    return answers


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1]), json.load(sys.stdin))))
