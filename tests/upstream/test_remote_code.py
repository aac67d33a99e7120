"""Code that comes with a model is found wherever a configuration lets it run; needs no torch."""

from __future__ import annotations

from typing import Any

import pytest

from mmf_win.upstream.remote_code import remote_code


@pytest.mark.parametrize(
    "value",
    [
        {"trust_remote_code": True},
        {"trust_remote_code": "${oc.env:PYTHONSAFEPATH,}"},
        [{"params": {"trust_remote_code": 1}}],
        {"auto_map": {"AutoConfig": "own.Config"}},
        "${oc.create:'{trust_remote_code: true}'}",
        "${oc.${kind}:'{trust_remote_code: true}'}",
        "${oc.env:HOME}/${ oc.decode:${oc.env:CODE}}",
    ],
)
def test_what_may_run_code_is_named(value: Any) -> None:
    [key] = remote_code({"model_config": {"mmbt": value}})
    assert key.startswith("model_config.mmbt")


@pytest.mark.parametrize(
    "value",
    [
        {"trust_remote_code": False},
        {"trust_remote_code": None},
        ["${env.data_dir}/x", "${oc.env:HOME,''}/${training.max_updates}", "${env:HOME}", "${.beside}"],
        "${resolve_cache_dir:MMF_CACHE_DIR}",
    ],
)
def test_what_cannot_is_not(value: Any) -> None:
    assert not list(remote_code({"model_config": {"mmbt": value}}))
