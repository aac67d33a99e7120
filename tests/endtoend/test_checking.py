"""Findings of ``mmfw check`` with the real MMF: none for sound models and data, one for each planted fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.endtoend.conftest import CTRL_C, INTERRUPTED_EXIT_CODE, SetFaults, Tool, read_events_of_kind, start_command
from tests.endtoend.test_user_code import guide  # noqa: F401 - a fixture
from tests.worlds import tiny_mmf
from tests.worlds.tools import requires_console_events

# Model of text and image, sound except for the fault that `fault` names.
FAULTY_MODEL = """
import torch
from mmf.common.registry import registry
from mmf.models.base_model import BaseModel
from torch import nn

@registry.register_model("planted")
class Planted(BaseModel):
    def build(self):
        torch.manual_seed(1)
        self.fault = self.config.get("fault")
        self.words, self.pixels = nn.Embedding(64, 16), nn.Linear(3 * 32 * 32, 16)
        self.spare, self.head = nn.Linear(16, 16), nn.Linear(32, 2)
        if self.fault == "frozen":
            self.words.requires_grad_(False)
        if self.fault == "all frozen":
            self.requires_grad_(False)

    def get_optimizer_parameters(self, config):
        forgotten = [self.words] if self.fault == "forgotten" else []
        left_out = {id(p) for module in forgotten for p in module.parameters()}
        return [{"params": [p for p in self.parameters() if id(p) not in left_out]}]

    def forward(self, sample_list):
        fault = self.fault
        text, image = self.words(sample_list.input_ids).mean(1), self.pixels(sample_list.image.flatten(1))
        if fault != "unused":
            text = text + self.spare(text)
        if fault == "no image":
            image = image * 0
        both = torch.cat([text.detach() if fault == "detached" else text, image], 1)
        if fault == "batch":
            both = both - both.mean(0)
        if fault == "dropout":
            both = nn.functional.dropout(both, 0.5)
        scores = self.head(both * 100 if fault == "scale" else both)
        if fault == "softmax":
            scores = scores.softmax(1)
        if fault == "one score":
            scores = torch.cat([scores, scores[:, :1]], 1)
        if fault == "single score":
            scores = scores[:, :1]
        if fault == "stuck":
            scores = scores * 1e-6
        if fault == "broken":
            scores = scores.view(7, 3)
        return {"scores": scores}
"""

# Checks a new model for each of `faults` in one worker, and writes the findings to findings.json.
CHECK_EACH_FAULT = """
import contextlib, json, types
from pathlib import Path
from mmf.utils.build import build_model, build_optimizer
from mmf_win.worker.tasks import check as checks

def check_each(observer, trainer, limit, check=checks.run_checks):
    config, findings = trainer.config.model_config.planted, {}
    for fault in config.faults:
        config.fault = fault
        trainer.model = build_model(config)
        trainer.optimizer = build_optimizer(trainer.model, trainer.config)
        checks._MAX_CHECK_SECONDS = 0 if fault == "no time" else 60
        findings[fault] = events = []
        def record(kind, **values):
            events.append(values)
        recorder = types.SimpleNamespace(loaded_tensors=set(), write_event=record, heartbeat=observer.heartbeat)
        with contextlib.suppress(checks.ChecksFinished):
            check(recorder, trainer, limit)
    Path(__file__).with_name("findings.json").write_text(json.dumps(findings), encoding="utf-8")
    raise checks.ChecksFinished

checks.run_checks = check_each
"""

# For each fault: the verdict, the check that finds it, and a part of its message.
FAULTS = {
    "softmax": ("error", "scores", "softmax comes before cross-entropy"),
    "one score": ("error", "scores", "shape (4, 3), not (4, 2)"),
    "scale": ("warning", "scores", "the first loss is"),
    "broken": ("error", "scores", "RuntimeError: shape '[7, 3]' is invalid"),
    "unused": ("warning", "parameters", "2 of 7 tensors get no gradient: spare.weight, spare.bias"),
    "detached": ("warning", "parameters", "get no gradient: words.weight"),
    "forgotten": ("warning", "parameters", "1 of 7 tensors are not given to the optimizer: words.weight"),
    "frozen": ("note", "parameters", "1 of 7 tensors are frozen: words.weight"),
    "all frozen": ("error", "parameters", "all tensors are frozen"),
    "single score": ("error", "scores", "shape (4, 1), not (4, 2)"),
    "batch": ("error", "rows", "the first row's scores differ by"),
    "dropout": ("error", "rows", "evaluated twice, scores differ by"),
    "no image": ("warning", "modalities", "all scores stay the same with the image of another row"),
    "stuck": ("error", "one batch", "the lowest loss is 0.69 at the run's learning rate of 0.01, and not below 0.6"),
    "no time": ("note", "one batch", "skipped: would take about"),
}


def list_problems(result: Any) -> list[tuple[str, str]]:
    """Return the verdict and the check of each finding that is worse than a note."""
    return [
        (finding["verdict"], finding["check"])
        for finding in result["findings"]
        if finding["verdict"] in ("warning", "error")
    ]


def write_faulty_preset(tool: Tool, fault: str | None, code: str = FAULTY_MODEL) -> str:
    """Write the faulty model and a preset for it, with texts of known tokens, and return the preset's path."""
    folder = tool.folder / "planted"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(code, encoding="utf-8")
    model = {"fault": fault, "faults": [*FAULTS], "losses": ["cross_entropy"]}
    dataset = tool.recipe_settings("mmbt")["dataset_config"]
    settings = {"env": {"user_dir": str(folder)}, "model_config": {"planted": model}, "dataset_config": dataset}
    settings |= {"training": {"batch_size": 4, "num_workers": 0}, "optimizer": {"params": {"lr": 1e-2}}}
    return tool.write_preset("mmbt", model="planted", settings=settings)


def copy_in_english(tool: Tool, name: str = "english") -> Tool:
    """Return the tool with a copy of the memes in which each word is in the vocabulary."""
    english_tool = tool.with_world_copy(name)
    for path in (english_tool.world.dataset / "annotations").iterdir():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row["text"] = row["text"].replace("café", "cat").replace("смех", "dog").replace("世界", "tree")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return english_tool


@pytest.mark.parametrize("name", sorted(tiny_mmf.recipes()))
def test_models_of_mmf_have_no_problems(tool: Tool, name: str) -> None:
    result = copy_in_english(tool)("check", tool.write_preset(name))
    assert not list_problems(result)
    checks = [finding["check"] for finding in result["findings"]]
    assert {"balance", "splits", "scores", "parameters", "rows", "modalities", "texts", "one batch"} == set(checks)
    without_gradient = [finding["text"] for finding in result["findings"] if "gradient:" in finding["text"]]
    assert bool(without_gradient) == (name == "vilbert") and all(
        "biOutput.q_dense1" in text for text in without_gradient
    )
    assert not tool.save_dir.exists()


def match_findings(fault: str, findings: list[Any]) -> list[tuple[str, bool]]:
    """Return the verdicts of the check that should find a fault, and whether each has the expected text."""
    _, check, expected_text = FAULTS[fault]
    matches = [finding for finding in findings if finding["check"] == check and finding["verdict"] != "ok"]
    return [(finding["verdict"], expected_text in f"{finding['text']}; {finding['advice']}") for finding in matches]


def test_each_planted_fault_is_found(tool: Tool, mmf_version: str) -> None:
    english_tool, preset = copy_in_english(tool), write_faulty_preset(tool, None, FAULTY_MODEL + CHECK_EACH_FAULT)
    # Without this setting, 1.0.0rc12 does not build a model whose optimizer lacks a tensor.
    overrides = ["optimizer.allow_unused_parameters=True"] if mmf_version == "rc12" else []
    english_tool("check", preset, *overrides, "--trust")
    findings = json.loads((tool.folder / "planted" / "findings.json").read_text(encoding="utf-8"))
    assert {fault: match_findings(fault, findings[fault]) for fault in FAULTS} == {
        fault: [(verdict, True)] for fault, (verdict, _, _) in FAULTS.items()
    }


@pytest.mark.parametrize(("fault", "code"), [("softmax", 9), ("no image", 0)])
def test_errors_change_the_exit_code_and_warnings_do_not(tool: Tool, fault: str, code: int) -> None:
    english_tool = copy_in_english(tool)
    assert english_tool.run_for_exit_code("check", write_faulty_preset(tool, fault), "--trust", "--json") == code
    output, _, error = english_tool.output.partition('{"error": ')
    findings = json.loads(output)["findings"]
    assert bool(error) == bool(code) == ("findings are errors" in english_tool.errors)
    assert match_findings(fault, findings) == [(FAULTS[fault][0], True)]
    assert all(len(finding["memes"]) == 4 for finding in findings if finding["check"] == FAULTS[fault][1])


def test_model_without_a_fault_and_model_of_the_guide_have_no_problems(
    tool: Tool,
    guide: Path,  # noqa: F811
) -> None:
    english_tool = copy_in_english(tool)
    assert not list_problems(english_tool("check", write_faulty_preset(tool, None), "--trust"))
    assert not list_problems(english_tool("check", str(guide / "small_cnn.yaml"), "--trust"))


@pytest.mark.wide
def test_unknown_words_and_truncated_texts_are_counted(tool: Tool) -> None:
    settings = tool.recipe_settings("bert")
    settings["dataset_config"]["hateful_memes"]["processors"]["text_processor"]["params"]["max_seq_length"] = 6
    (finding,) = (
        result
        for result in tool("check", tool.write_preset("bert", settings=settings))["findings"]
        if result["check"] == "texts"
    )
    assert finding["verdict"] == "warning" and finding["advice"]
    assert finding["text"] == "14 of 14 texts are truncated to 4 tokens; 26.0 % of all tokens are unknown"
    assert len(finding["memes"]) == 14


def test_meme_in_two_splits_and_odd_first_loss_are_reported_by_check_and_train(tool: Tool) -> None:
    tool_copy = copy_in_english(tool)
    annotations = tool_copy.world.dataset / "annotations"
    rows = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in annotations.iterdir()}
    (annotations / "dev_unseen.jsonl").write_text(
        "\n".join([*rows["dev_unseen"], rows["dev_seen"][0], rows["train"][3]]) + "\n", encoding="utf-8"
    )
    meme = json.loads(rows["train"][3])["id"]
    message = f"memes in both train and dev_unseen: 1 ({int(meme)})"
    result = tool_copy("check", write_faulty_preset(tool, "scale"), "--trust")
    assert ("warning", message) in [(finding["verdict"], finding["text"]) for finding in result["findings"]]
    assert [finding["memes"] for finding in result["findings"] if finding["check"] == "splits"] == [[str(int(meme))]]

    run = tool_copy.train(write_faulty_preset(tool, "scale"), "--updates", "2", "--seed", "1")
    assert f"warning: {message}; " in tool_copy.errors
    (note,) = (event["text"] for event in read_events_of_kind(run, "note"))
    assert note.startswith("the first loss is ") and f"warning: {note}" in tool_copy.errors
    tool_copy.train("--resume", "last", "--updates", "3")
    assert len(read_events_of_kind(run, "note")) == 1, "the resumed run must not report a first loss"

    copy_in_english(tool, "sound").train(write_faulty_preset(tool, None), "--updates", "2", "--seed", "1")
    assert "warning: " not in tool.errors


def test_check_does_not_change_the_run_and_writes_its_findings_to_a_new_file(tool: Tool) -> None:
    run, out = tool.get_trained_run("bert"), tool.folder / "найдено.json"

    def read_files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tool.save_dir.rglob("*") if path.is_file()}

    before = read_files()
    result = tool("check", run.id, "-o", str(out))
    assert result["name"] == run.id and json.loads(out.read_text(encoding="utf-8")) == result
    assert read_files() == before
    assert tool.run_for_exit_code("check", run.id, "-o", str(out)) == 2
    assert "already exists" in tool.errors
    assert tool.run_for_exit_code("check", run.id, "-o", str(out.parent / "none" / out.name)) == 2
    assert "folder not found" in tool.errors
    assert tool.run_for_exit_code("check") == 0, "warnings must not change the exit code"
    *table, counts = tool.output.splitlines()
    assert table[0].split() == ["verdict", "check", "finding"]
    assert any(line.startswith("warning") and "texts" in line for line in table)
    assert counts == "8 ok, 0 note, 1 warning, 0 error"


@requires_console_events
def test_ctrl_c_leaves_no_run_and_no_temporary_files(
    tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault_marker, temporary_dir = tool.folder / "at", tool.folder / "scratch"
    temporary_dir.mkdir()
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(temporary_dir))
    set_faults({"at": "forward", "do": "wait_to_be_stopped", "once": str(fault_marker)})
    with start_command(tool, "check", tool.write_preset("bert")) as command:
        command.wait_until(fault_marker.exists)
        command.process.send_signal(CTRL_C)
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert "nothing was saved" in command.output
    assert not tool.save_dir.exists() and not [*temporary_dir.glob("mmfw-check-*")]


@pytest.mark.wide
def test_too_large_learning_rate_is_not_blamed_on_the_model(tool: Tool) -> None:
    result = copy_in_english(tool)("check", write_faulty_preset(tool, None), "--trust", "optimizer.params.lr=1e30")
    (finding,) = (candidate for candidate in result["findings"] if candidate["check"] == "one batch")
    assert finding["verdict"] == "note" and "at the run's learning rate of 1e+30" in finding["text"]
    assert "reduce the rate" in finding["advice"]
    assert not list_problems(result)


@pytest.mark.wide
def test_run_is_checked_with_its_initial_weights_and_without_its_teacher(tool: Tool) -> None:
    english_tool = copy_in_english(tool)
    teacher_run = english_tool.train(write_faulty_preset(tool, None), "--updates", "2", "--trust")
    csv = english_tool("predict", teacher_run.id, "--split", "train", "--no-report", "--trust")["csv"]
    teacher = Path(csv)
    rows = [f"{line.partition(',')[0]},0.5,0" for line in teacher.read_text("utf-8").splitlines()[1:]]
    teacher.write_text("\n".join(["id,proba,label", *rows]), encoding="utf-8")
    weights = teacher_run.checkpoints / "current.ckpt"
    options = ("--updates", "2", "--teacher", str(teacher), "--teacher-weight", "1", "--name", "student")
    english_tool.train(write_faulty_preset(tool, None), *options, "--init", str(weights), "--trust")
    teacher.unlink()
    result = english_tool("check", "student", "--trust")
    assert not list_problems(result), "an undecided teacher must not keep a model from learning the labels"
    assert str(weights) in next(finding for finding in result["findings"] if finding["check"] == "weights")["text"]
    weights.unlink()
    assert english_tool.run_for_exit_code("check", "student", "--trust") == 0
    assert f"started with {weights}, which does not exist" in english_tool.errors


def test_model_that_cannot_be_built_is_reported_with_the_end_of_its_output(tool: Tool) -> None:
    assert (
        tool.run_for_exit_code(
            "check", write_faulty_preset(tool, "none"), "--trust", "model_config.planted.losses=[nosuch]"
        )
        == 7
    )
    assert "nosuch" in tool.errors and "mmfw train" in tool.errors
    assert "mmfw-check-" not in tool.errors.partition("hint:")[2]


@pytest.mark.wide
def test_share_of_the_model_set_by_a_weights_file_is_reported(tool: Tool) -> None:
    weights = tool.get_trained_run("visual_bert", run="source").checkpoints / "current.ckpt"
    preset = tool.write_preset("visual_bert", config="projects/visual_bert/configs/hateful_memes/from_coco.yaml")
    overrides = (f"checkpoint.resume_file={weights}", "checkpoint.resume_zoo=null")
    findings = {finding["check"]: finding for finding in copy_in_english(tool)("check", preset, *overrides)["findings"]}
    assert findings["weights"]["verdict"] == "note"
    assert "of the model's" in findings["weights"]["text"] and "classifier" in findings["weights"]["text"]
    assert findings["scores"]["verdict"] == "ok"
