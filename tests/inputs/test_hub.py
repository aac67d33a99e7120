"""Download of a BERT with huggingface_hub, from a local server that answers like the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.worlds import hostile_archives
from tests.worlds.web_server import WebServer

pytestmark = pytest.mark.torch  # for huggingface_hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BERT = {"config.json": b"{}", "vocab.txt": b"[PAD]\n", "model.safetensors": b"weights" * 1000}

AGAINST = "the hash in its name"

# huggingface_hub reads the address of the Hub when it is imported.
CODE = """
import json, os, sys
from pathlib import Path
from mmf_win.inputs.input_files import fetch_inputs
from mmf_win.inputs import hub
from mmf_win.inputs.input_files import Mirror
from mmf_win.errors import MmfwError
from mmf_win.paths import MmfPaths
name, kind, data, links, published = sys.argv[1:]
if links == "False":
    def refuse(source, target, *_, **__):
        raise OSError(22, "A required privilege is not held by the client", source, None, target)
    os.symlink = refuse
mmf_paths = MmfPaths(Path(data), Path(data), Path(data))
published = {model: (tuple(names), sha256) for model, (names, sha256) in json.loads(published).items()}
hub._PUBLISHED_WEIGHTS.update(published)
weights = {"bert": hub.WEIGHTS, "clip": hub.SAFETENSORS, "tokenizer": ()}[kind]
bert = hub.make_model_input(name, mmf_paths, weights=weights, kind=kind)
try:
    [status] = fetch_inputs([bert], mmf_paths, Mirror())
except MmfwError as error:
    sys.exit(f"{error} ({error.hint})")
print(json.dumps([status.state, status.verified_against, sorted(path.name for path in bert.files())]))
"""


@dataclass
class Hub:
    """Local Hub, with a client process.

    Attributes:
        server: Answers like the Hub.
        folder: Contains the cache.
        published: File and hash of known weights, by the name of a model with its revision.
        links: False makes the client refuse links, as Windows without developer mode does.
    """

    server: WebServer
    folder: Path
    links: bool = True
    published: dict[str, tuple[list[str], str]] = field(default_factory=dict)

    def fetch(self, kind: str = "bert", name: str = "owner/tiny") -> subprocess.CompletedProcess[str]:
        """Fetch a model in a child process."""
        arguments = [name, kind, str(self.folder / "data"), str(self.links), json.dumps(self.published)]
        return subprocess.run(
            [sys.executable, "-c", CODE, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            env=self.environ,
        )

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that point huggingface_hub to this Hub and the cache."""
        return {
            **os.environ,
            "HF_ENDPOINT": self.server.url,
            "HF_HOME": str(self.folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "PYTHONUTF8": "1",
        }

    @property
    def snapshot(self) -> Path:
        """Folder in which transformers finds the files."""
        return self.folder / "hf" / "hub" / "models--owner--tiny" / "snapshots" / COMMIT


@pytest.fixture
def hub(user_dir: Path) -> Iterator[Hub]:
    """Serve a BERT of three files."""
    with WebServer.serving() as server:
        for version in ("main", COMMIT):
            files = {f"owner/tiny/resolve/{version}/{name}": content for name, content in BERT.items()}
            server.files.update(files)
        server.headers = {"X-Repo-Commit": COMMIT, "X-Error-Code": "EntryNotFound"}
        yield Hub(server, user_dir)


@pytest.mark.parametrize(("kind", "names"), [("bert", sorted(BERT)), ("tokenizer", ["config.json", "vocab.txt"])])
def test_bert_files_are_downloaded_into_the_cache_of_transformers(hub: Hub, kind: str, names: list[str]) -> None:
    process = hub.fetch(kind)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == ["intact", AGAINST, names]
    assert {path.name: path.read_bytes() for path in hub.snapshot.iterdir()} == {n: BERT[n] for n in names}


def test_clip_is_fetched_at_its_revision_as_safetensors_with_the_published_hash(hub: Hub) -> None:
    model = f"owner/tiny@{COMMIT}"
    for path in [path for path in hub.server.files if "/main/" in path]:
        hub.server.files[path] = b"a later version"
    hub.server.files[f"owner/tiny/resolve/{COMMIT}/pytorch_model.bin"] = b"a pickle"
    hub.published[model] = (["model.safetensors"], hashlib.sha256(BERT["model.safetensors"]).hexdigest())
    process = hub.fetch("clip", model)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == ["intact", "the published SHA-256", sorted(BERT)]
    assert not (hub.snapshot.parents[1] / "refs").exists(), (
        "no revision must be recorded as the newest for other programs"
    )

    hub.published[model] = (["model.safetensors"], "0" * 64)
    process = hub.fetch("clip", model)
    assert json.loads(process.stdout)[0] == "damaged"

    hub.published.clear()
    shutil.rmtree(hub.folder / "hf")
    del hub.server.files[f"owner/tiny/resolve/{COMMIT}/model.safetensors"]
    process = hub.fetch("clip", model)
    assert process.returncode == 1 and "no weights on the Hugging Face Hub" in process.stderr, (
        "a pickle must not be used instead"
    )


@pytest.mark.parametrize("links", [True, False])
def test_only_the_damaged_file_is_downloaded_again(hub: Hub, links: bool) -> None:
    hub.links = links
    assert hub.fetch().returncode == 0
    hostile_archives.truncate_file((hub.snapshot / "vocab.txt").resolve())
    hub.server.requests.clear()
    process = hub.fetch()
    assert process.returncode == 0, process.stderr
    assert (hub.snapshot / "vocab.txt").read_bytes() == BERT["vocab.txt"]
    assert [request.path.rpartition("/")[2] for request in hub.server.content_requests] == ["vocab.txt"]
    assert json.loads(process.stdout)[:2] == ["intact", AGAINST]
    assert links or not (hub.snapshot / "vocab.txt").is_symlink()


def test_damaged_bert_is_found_and_repaired_by_the_commands(hub: Hub) -> None:
    assert hub.fetch().returncode == 0

    def mmfw(command: str) -> int:
        arguments = [sys.executable, "-m", "mmf_win", command, "features", "--data-dir", str(hub.folder / "data")]
        environ = {**hub.environ, "MMF_CACHE_DIR": str(hub.folder / "data")}
        return subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, env=environ).returncode

    assert mmfw("verify") == 0
    hostile_archives.flip_byte((hub.snapshot / "model.safetensors").resolve(), 10)
    assert mmfw("verify") == 3
    assert mmfw("repair") == 0
    assert (hub.snapshot / "model.safetensors").read_bytes() == BERT["model.safetensors"]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("model.safetensors", "no weights on the Hugging Face Hub"),
        ("vocab.txt", "no configuration or vocabulary on the Hugging Face Hub"),
        (None, r"owner/tiny: cannot be downloaded from the Hugging Face Hub(?s:.*)HF_ENDPOINT for a mirror"),
    ],
)
def test_files_missing_on_the_hub_are_reported(hub: Hub, missing: str | None, message: str) -> None:
    if missing is None:  # the server does not answer like the Hub
        hub.server.headers = {}
        hub.server.files.clear()
    else:
        del hub.server.files[f"owner/tiny/resolve/main/{missing}"]
    process = hub.fetch()
    assert process.returncode == 1
    assert re.search(message, process.stderr)
    assert "Traceback" not in process.stderr
