"""Commands of README.md, the tutorial and the notebook, run with a tenth of the demo's memes.

:data:`SMALLER` replaces slow options, and :data:`NOT_RUN` lists the lines that are skipped, with the reasons. One
test runs them all in one folder.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.demo import synthetic
from mmf_win.demo.folder import PASSWORD, DemoFolder
from mmf_win.runs import attempts, micro_batch_store
from tests.worlds.tools import split_command

ROOT = Path(__file__).parents[2]
NOT_RUN = {
    "pip install ": "it would change the environment of the tests; CI installs mmfw first",
    "python scripts/demo.py": "it creates another environment of 1.6 GB; a CI job runs it",
    "python scripts/test.py": "it runs this test",
    "$ mmfw ": "it is output of scripts/demo.py, not a command to type",
    "mmfw demo --keep": "it trains for a minute, as test_wheel_workflow.py does; here its archive is made",
}
SMALLER = {
    "mmbt_grid": "demo --updates 1",  # MMBT-Grid starts from a BERT and a ResNet of 1 GB together
    "--updates 100": "--updates 1",
    "--updates 300": "--updates 2",
}
# Runs in a separate process, as in `mmfw demo`.
_MAKE_SMALLER_DEMO = """
import json, sys
from pathlib import Path
from mmf_win.demo import generate, synthetic
synthetic.SPLIT_SIZES = json.loads(sys.argv[2])
for model in ("vilbert", "clip"):
    generate.main(Path(sys.argv[1]), 1, model)
"""


def _list_commands(page: str) -> Iterator[str]:
    """Yield the lines of a page's shell blocks, without the output that a block shows."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language in ("", "sh", "bash", "shell", "console"):
            lines = block.splitlines()
            yield from [line for line in lines if line.startswith("$ ")] or filter(None, lines)


def _read_cells() -> list[str]:
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _run_command(line: str) -> None:
    """Run a command in this process."""
    if line.startswith(tuple(NOT_RUN)):
        return
    for option, replacement in SMALLER.items():
        line = line.replace(option, replacement)
    program, *arguments = split_command(line)
    assert program == "mmfw", f"{line}: run it in this test, or add it to NOT_RUN with a reason"
    assert main(arguments) == 0, line


def test_commands_of_readme_tutorial_and_notebook_produce_scores(
    worker_command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "WORKER_COMMAND", worker_command)
    monkeypatch.setattr(micro_batch_store, "store_path", lambda: tmp_path / "fits.json")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    demo = DemoFolder(tmp_path / "mmfw-demo")
    demo.claim()
    sizes = {split: size // 10 // 4 * 4 for split, size in synthetic.SPLIT_SIZES.items()}
    subprocess.run([sys.executable, "-c", _MAKE_SMALLER_DEMO, str(demo.path), json.dumps(sizes)], check=True)

    monkeypatch.setenv("MMFW_PASSWORD", PASSWORD)  # a terminal would prompt for it
    shutil.copy(demo.archive, demo.path / "memes.zip")
    monkeypatch.chdir(tmp_path)
    # The tutorial comes first, since it extracts the features that the demo's preset needs.
    tutorial = list(_list_commands("docs/tutorial.md"))
    lines = [*tutorial, *(line for line in _list_commands("README.md") if line not in tutorial)]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []
    for line in lines:
        if line.startswith("cd "):
            monkeypatch.chdir(line.removeprefix("cd "))
        elif line.startswith("export "):
            for name, _, value in (word.partition("=") for word in split_command(line)[1:]):
                monkeypatch.setenv(name, value.replace("$PWD", str(Path.cwd())))
        else:
            _run_command(line)
    scores = [json.loads(path.read_text("utf-8")) for path in demo.save_dir.rglob("*.metrics.json")]
    assert [score["rows"] for score in scores] == [sizes["test_unseen"]] * 2

    shutil.rmtree(demo.save_dir)
    Path("mmf_win-0-py3-none-any.whl").touch()
    monkeypatch.setenv("MMFW_PASSWORD", "")  # the notebook sets it
    monkeypatch.setattr("getpass.getpass", lambda prompt: PASSWORD)
    shutil.copy(next(demo.data_dir.rglob("*.png")), "meme.png")
    table, validations, page = _run_notebook()
    assert table["seed"].tolist() == [1]
    assert table["test_auroc"].notna().all()
    assert validations["metrics.auroc"].between(0, 1).all()
    assert page._repr_html_().count("<iframe") == 1


def _run_notebook() -> list[Any]:
    """Run the notebook's cells with the demo's CLIP, and return the values that the cells display."""
    namespace: dict[str, Any] = {"_run_command": _run_command}
    values = []
    for cell in _read_cells():
        cell = cell.replace("mmbt_grid --seed", "demo_clip --updates 1 --seed").replace("mmbt_grid", "demo_clip")
        exec(re.sub("^[!%](.*)$", lambda match: f"_run_command({match[1]!r})", cell, flags=re.MULTILINE), namespace)
        last_line = cell.splitlines()[-1]
        if not last_line.startswith((" ", "!", "%")):
            values.append(eval(last_line, namespace))
    return values
