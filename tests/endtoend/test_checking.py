"""``mmfw check`` on the real MMF: silent about sound models and data, and what it says of planted faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.endtoend.conftest import SetFaults, Tool, read_events_of_kind
from tests.endtoend.test_own_code import guide  # noqa: F401 - a fixture
from tests.endtoend.test_stopping import _CTRL_C, _INTERRUPTED, user
from tests.worlds import tiny_mmf
from tests.worlds.tools import requires_console_events

# A model of text and image, sound but for what `fault` names.
PLANTED = """
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

# Checks in one worker a new model for each of `faults`, and writes what is found to found.json.
EACH_FAULT = """
import contextlib, json, types
from pathlib import Path
from mmf.utils.build import build_model, build_optimizer
from mmf_win.worker.tasks import check as checks

def check_each(observer, trainer, limit, check=checks.run):
    config, found = trainer.config.model_config.planted, {}
    for fault in config.faults:
        config.fault = fault
        trainer.model = build_model(config)
        trainer.optimizer = build_optimizer(trainer.model, trainer.config)
        checks._MAX_CHECK_SECONDS = 0 if fault == "no time" else 60
        found[fault] = events = []
        def record(kind, **values):
            events.append(values)
        recorder = types.SimpleNamespace(loaded_tensors=set(), write_event=record, heartbeat=observer.heartbeat)
        with contextlib.suppress(checks.ChecksFinished):
            check(recorder, trainer, limit)
    Path(__file__).with_name("found.json").write_text(json.dumps(found), encoding="utf-8")
    raise checks.ChecksFinished

checks.run = check_each
"""

# Fault → the verdict, the check that finds it, and what that says.
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


def unsound(found: Any) -> list[tuple[str, str]]:
    """Return the results worse than a note: verdict and check."""
    return [(each["verdict"], each["check"]) for each in found["findings"] if each["verdict"] in ("warning", "error")]


def planted(tool: Tool, fault: str | None, code: str = PLANTED) -> str:
    """A preset of the model with a fault, whose texts have no token that the tiny BERT does not know."""
    folder = tool.folder / "planted"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(code, encoding="utf-8")
    model = {"fault": fault, "faults": [*FAULTS], "losses": ["cross_entropy"]}
    dataset = tool.settings("mmbt")["dataset_config"]
    settings = {"env": {"user_dir": str(folder)}, "model_config": {"planted": model}, "dataset_config": dataset}
    settings |= {"training": {"batch_size": 4, "num_workers": 0}, "optimizer": {"params": {"lr": 1e-2}}}
    return tool.preset("mmbt", model="planted", settings=settings)


def in_english(tool: Tool, name: str = "english") -> Tool:
    """The tool beside memes whose every word is in the vocabulary."""
    other = tool.with_world_copy(name)
    for path in (other.world.dataset / "annotations").iterdir():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row["text"] = row["text"].replace("café", "cat").replace("смех", "dog").replace("世界", "tree")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return other


@pytest.mark.parametrize("name", sorted(tiny_mmf.recipes()))
def test_the_models_of_mmf_are_sound(tool: Tool, name: str) -> None:
    found = in_english(tool)("check", tool.preset(name))
    assert not unsound(found)
    checks = [each["check"] for each in found["findings"]]
    assert {"balance", "splits", "scores", "parameters", "rows", "modalities", "texts", "one batch"} == set(checks)
    never = [each["text"] for each in found["findings"] if "gradient:" in each["text"]]
    assert bool(never) == (name == "vilbert") and all("biOutput.q_dense1" in text for text in never)
    assert not tool.save_dir.exists()


def told_of(fault: str, found: list[Any]) -> list[tuple[str, bool]]:
    """The verdicts of the check that has to find a fault, and whether it says so; empty where all is well."""
    _, check, said = FAULTS[fault]
    remarks = [each for each in found if each["check"] == check and each["verdict"] != "ok"]
    return [(each["verdict"], said in f"{each['text']}; {each['advice']}") for each in remarks]


def test_each_planted_fault_is_found(tool: Tool, mmf_version: str) -> None:
    sound, preset = in_english(tool), planted(tool, None, PLANTED + EACH_FAULT)
    # Without that, 1.0.0rc12 does not build the model whose optimizer lacks a tensor.
    words = ["optimizer.allow_unused_parameters=True"] if mmf_version == "rc12" else []
    sound("check", preset, *words, "--trust")
    found = json.loads((tool.folder / "planted" / "found.json").read_text(encoding="utf-8"))
    assert {fault: told_of(fault, found[fault]) for fault in FAULTS} == {
        fault: [(verdict, True)] for fault, (verdict, _, _) in FAULTS.items()
    }


@pytest.mark.parametrize(("fault", "code"), [("softmax", 9), ("no image", 0)])
def test_an_error_decides_the_exit_code_and_a_warning_does_not(tool: Tool, fault: str, code: int) -> None:
    sound = in_english(tool)
    assert sound.run_for_exit_code("check", planted(tool, fault), "--trust", "--json") == code
    told, _, error = sound.output.partition('{"error": ')
    found = json.loads(told)["findings"]
    assert bool(error) == bool(code) == ("findings are errors" in sound.errors)
    assert told_of(fault, found) == [(FAULTS[fault][0], True)]
    assert all(len(each["memes"]) == 4 for each in found if each["check"] == FAULTS[fault][1])


def test_the_planted_model_without_a_fault_and_that_of_the_guide_are_sound(
    tool: Tool,
    guide: Path,  # noqa: F811
) -> None:
    english = in_english(tool)
    assert not unsound(english("check", planted(tool, None), "--trust"))
    assert not unsound(english("check", str(guide / "small_cnn.yaml"), "--trust"))


@pytest.mark.wide
def test_words_that_the_vocabulary_lacks_and_texts_that_are_cut_are_counted(tool: Tool) -> None:
    settings = tool.settings("bert")
    settings["dataset_config"]["hateful_memes"]["processors"]["text_processor"]["params"]["max_seq_length"] = 6
    (found,) = (
        each for each in tool("check", tool.preset("bert", settings=settings))["findings"] if each["check"] == "texts"
    )
    assert found["verdict"] == "warning" and found["advice"]
    assert found["text"] == "14 of 14 texts are truncated to 4 tokens; 26.0 % of all tokens are unknown"
    assert len(found["memes"]) == 14


def test_a_meme_in_two_splits_is_told_by_check_and_by_train_and_so_is_an_odd_first_loss(tool: Tool) -> None:
    twice = in_english(tool)
    annotations = twice.world.dataset / "annotations"
    rows = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in annotations.iterdir()}
    (annotations / "dev_unseen.jsonl").write_text(
        "\n".join([*rows["dev_unseen"], rows["dev_seen"][0], rows["train"][3]]) + "\n", encoding="utf-8"
    )
    meme = json.loads(rows["train"][3])["id"]
    said = f"memes in both train and dev_unseen: 1 ({int(meme)})"
    found = twice("check", planted(tool, "scale"), "--trust")
    assert ("warning", said) in [(each["verdict"], each["text"]) for each in found["findings"]]
    assert [each["memes"] for each in found["findings"] if each["check"] == "splits"] == [[str(int(meme))]]

    run = twice.train(planted(tool, "scale"), "--updates", "2", "--seed", "1")
    assert f"warning: {said}; " in twice.errors
    (note,) = (event["text"] for event in read_events_of_kind(run, "note"))
    assert note.startswith("the first loss is ") and f"warning: {note}" in twice.errors
    twice.train("--resume", "last", "--updates", "3")
    assert len(read_events_of_kind(run, "note")) == 1, "what is trained already has no first loss"

    in_english(tool, "sound").train(planted(tool, None), "--updates", "2", "--seed", "1")
    assert "warning: " not in tool.errors


def test_a_run_stays_as_it_is_and_what_is_found_becomes_a_new_file(tool: Tool) -> None:
    run, out = tool.get_trained_run("bert"), tool.folder / "найдено.json"

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tool.save_dir.rglob("*") if path.is_file()}

    before = content()
    found = tool("check", run.id, "-o", str(out))
    assert found["name"] == run.id and json.loads(out.read_text(encoding="utf-8")) == found
    assert content() == before
    assert tool.run_for_exit_code("check", run.id, "-o", str(out)) == 2
    assert "already exists" in tool.errors
    assert tool.run_for_exit_code("check", run.id, "-o", str(out.parent / "none" / out.name)) == 2
    assert "folder not found" in tool.errors
    assert tool.run_for_exit_code("check") == 0, "a warning is no error"
    *table, counts = tool.output.splitlines()
    assert table[0].split() == ["verdict", "check", "finding"]
    assert any(line.startswith("warning") and "texts" in line for line in table)
    assert counts == "8 ok, 0 note, 1 warning, 0 error"


@requires_console_events
def test_after_ctrl_c_nothing_is_kept(tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch) -> None:
    at, scratch = tool.folder / "at", tool.folder / "scratch"
    scratch.mkdir()
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(scratch))
    set_faults({"at": "forward", "do": "wait_to_be_stopped", "once": str(at)})
    with user(tool, "check", tool.preset("bert")) as somebody:
        somebody.waits_for(at.exists)
        somebody.process.send_signal(_CTRL_C)
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert "nothing was saved" in somebody.read
    assert not tool.save_dir.exists() and not [*scratch.glob("mmfw-check-*")]


@pytest.mark.wide
def test_a_rate_that_is_too_large_is_not_blamed_on_the_model(tool: Tool) -> None:
    found = in_english(tool)("check", planted(tool, None), "--trust", "optimizer.params.lr=1e30")
    (learnt,) = (each for each in found["findings"] if each["check"] == "one batch")
    assert learnt["verdict"] == "note" and "at the run's learning rate of 1e+30" in learnt["text"]
    assert "too large" in learnt["advice"]
    assert not unsound(found)


@pytest.mark.wide
def test_a_run_is_checked_with_what_it_began_with_but_for_its_teacher(tool: Tool) -> None:
    english = in_english(tool)
    first = english.train(planted(tool, None), "--updates", "2", "--trust")
    written = english("predict", first.id, "--split", "train", "--no-report", "--trust")["csv"]
    teacher = Path(written)
    rows = [f"{line.partition(',')[0]},0.5,0" for line in teacher.read_text("utf-8").splitlines()[1:]]
    teacher.write_text("\n".join(["id,proba,label", *rows]), encoding="utf-8")
    weights = first.checkpoints / "current.ckpt"
    words = ("--updates", "2", "--teacher", str(teacher), "--teacher-weight", "1", "--name", "student")
    english.train(planted(tool, None), *words, "--init", str(weights), "--trust")
    teacher.unlink()
    found = english("check", "student", "--trust")
    assert not unsound(found), "a teacher that is never sure keeps no model from learning the labels"
    assert str(weights) in next(each for each in found["findings"] if each["check"] == "weights")["text"]
    weights.unlink()
    assert english.run_for_exit_code("check", "student", "--trust") == 0
    assert f"started with {weights}, which does not exist" in english.errors


def test_a_model_that_cannot_be_built_is_told_with_the_end_of_its_output(tool: Tool) -> None:
    assert (
        tool.run_for_exit_code("check", planted(tool, "none"), "--trust", "model_config.planted.losses=[nosuch]") == 7
    )
    assert "nosuch" in tool.errors and "mmfw train" in tool.errors
    assert "mmfw-check-" not in tool.errors.partition("hint:")[2]


@pytest.mark.wide
def test_how_much_of_the_model_a_file_of_weights_sets_is_told(tool: Tool) -> None:
    weights = tool.get_trained_run("visual_bert", run="source").checkpoints / "current.ckpt"
    preset = tool.preset("visual_bert", config="projects/visual_bert/configs/hateful_memes/from_coco.yaml")
    words = (f"checkpoint.resume_file={weights}", "checkpoint.resume_zoo=null")
    found = {each["check"]: each for each in in_english(tool)("check", preset, *words)["findings"]}
    assert found["weights"]["verdict"] == "note"
    assert "of the model's" in found["weights"]["text"] and "classifier" in found["weights"]["text"]
    assert found["scores"]["verdict"] == "ok"
