"""Mistakes of new users: each is reported with a next step. Nothing here needs torch."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.runs.folder import Run
from mmf_win.runs.request import RunRequest
from tests.worlds.memes import dataset_files, make_encrypted_zip, write_tree
from tests.worlds.tools import MmfwRunner, split_command


@pytest.fixture
def user_world(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the archive, a converted dataset in ``data`` and a run in ``save``."""
    monkeypatch.chdir(user_dir)
    monkeypatch.setenv("MMF_CACHE_DIR", str(user_dir / "cache"))
    make_encrypted_zip(user_dir / "memes.zip", dataset_files())
    write_tree(dataset_files(top=""), user_dir / "unpacked")
    assert main(["convert", "--zip", "unpacked", "--data-dir", "data"]) == 0
    splits = {"train": "train", "val": "dev_unseen", "test": "test_unseen"}
    run = Run(user_dir / "save" / "mmbt" / "2026-01-01T00-00-00")
    (run.checkpoints).mkdir(parents=True)
    (run.checkpoints / "best.ckpt").write_bytes(b"cut off")
    run.save_request(RunRequest("mmbt", preset="mmbt_grid", splits=splits, data_dir=str(user_dir / "data")))
    return user_dir


RUN = "save/mmbt/2026-01-01T00-00-00"
DEFAULTS = "data/datasets/hateful_memes/defaults"
NO_DATASET = "no Hateful Memes dataset in {folder}/save\nhint: run `mmfw convert --zip ARCHIVE --data-dir {folder}"
NO_RUN = "{folder}/no: no run yet\nhint: create one with `mmfw train PRESET --save-dir {folder}/no`"
CHECK = ["check-submission", "no.csv", "--data-dir", "data", "--split"]


@pytest.mark.parametrize(
    "options", ["--track mlflow", "--output x", "--report", "--threshold best-accuracy", "--track=wandb"]
)
def test_image_rejects_options_about_prediction_files(
    user_world: Path, mmfw: MmfwRunner, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = ["predict", "--image", str(user_world / "memes.zip"), "--text", ""]
    mmfw(*image, *options.split(), code=2)
    assert f"error: {options.split()[0].partition('=')[0]} cannot be combined with --image" in mmfw.err
    assert "--memes FILE" in mmfw.err
    monkeypatch.setenv("MMFW_TRACK", "other")
    mmfw(*image, "--no-report", "--threshold", "0.5", code=2)
    assert "cannot be combined" not in mmfw.err


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["convert"], 2, "mmfw convert ARCHIVE"),
        (["convert", "memes.zip", "--zip", "memes.zip"], 2, "ARCHIVE, --zip and --clearml-dataset cannot be combined"),
        (["convert", "--zip", "memes.zip", "--password", "a", "b", "c"], 2, "quote a path"),
        (["convert", "--zip", "no.zip"], 3, "no.zip"),
        (["convert", "--zip", "~$no.zip"], 3, "~$no.zip"),
        (["train", "--resume", "~nobody/x"], 2, "~nobody/x"),
        (["export", "nobody", "-o", "new", "--int8", "--max-loss", "0.1"], 2, "no run named nobody"),
        (["export", "nobody", "-o", "new", "--max-loss", "0.1"], 2, "--max-loss requires --int8"),
        (["convert", "--zip", f"{DEFAULTS}/images", "--data-dir", "other"], 3, "no train.jsonl"),
        (["convert", "--zip", "save", "--data-dir", "other"], 3, "no train.jsonl"),
        (["train", "mmbt_grid", "--data-dir", "."], 3, "--data-dir {folder}/data"),
        (["train", "mmbt_grid", "--data-dir", DEFAULTS], 3, "--data-dir {folder}/data"),
        (["train", "mmbt_grid", "--data-dir", f"{DEFAULTS}/annotations"], 3, "--data-dir {folder}/data"),
        (["train", "memes.zip", "--data-dir", "data"], 2, "mmfw convert --zip"),
        (["train", "data", "--data-dir", "data"], 2, "data is a folder"),
        (["train", RUN, "--data-dir", "data"], 2, f"mmfw train --resume {RUN}"),
        (["train", "mmbt", "--resume", "best"], 2, "mmbt is a run, not a preset\nhint: run `mmfw train --resume mmbt "),
        (["train", "mmbt_gird.yaml", "--data-dir", "data"], 2, "mmbt_grid"),
        (["train"], 2, "`mmfw train --list`"),
        (["train", "mmbt_grid", "training.num_workers"], 2, "not a KEY=VALUE"),
        (["train", "mmbt_grid", "env.save_dir=elsewhere"], 2, "use --save-dir"),
        (["train", "mmbt_grid", "--updates", "2", "--epochs", "2"], 2, "both set the runs total"),
        (["train", "mmbt_grid", "--seed", "1", "training.seed=2"], 2, "--seed and training.seed=2"),
        (["train", "vilbret"], 2, "did you mean vilbert?"),
        (["train", "mmbt_grid", "--data-dir", "save"], 3, NO_DATASET),
        (["train", "--resume", "best", "--save-dir", "no"], 2, NO_RUN),
        (["predict", "mmbt_grid", "--save-dir", "no"], 2, "mmfw train mmbt_grid --save-dir"),
        (["train", "--resume", "nope"], 2, "mmfw runs --save-dir"),
        (["predict", f"{RUN}/checkpoints/best.ckpt"], 2, "mmfw predict --checkpoint"),
        (["predict", "--checkpoint", "latest"], 3, "best, last"),
        (["predict", "--checkpoint", RUN], 3, "best, last"),
        (["train", "vilbert", "--resume", RUN], 2, "no run of preset vilbert"),
        (["verify", "--data-dir", "nowhere"], 2, "nowhere"),
        (["verify", "runs", "--save-dir", "nowhere"], 2, "nowhere"),
        (["check", "nosuch"], 2, "no run named nosuch"),
        (["doktor"], 2, "mmfw doctor"),
        (["nosuch"], 2, "mmfw has no command nosuch\nhint: run `mmfw --help`"),
        (["sweep", "stauts"], 2, "mmfw sweep has no command stauts\nhint: did you mean `mmfw sweep status`?"),
        (["sweep", "ls"], 2, "mmfw sweep has no command ls\nhint: choose one of run, status, table, rm"),
        (["sweep", "unpacked"], 2, "did you mean `mmfw sweep run unpacked`?"),
        (["train", "--seeed", "1"], 2, "train has no option --seeed\nhint: did you mean --seed?"),
        (["train", "--seed", "x"], 2, "error: invalid value for --seed: x is not a whole number\nhint"),
        (["check-submission"], 2, "error: missing argument FILE\nhint: run `mmfw check-submission --help`"),
        (["--data-dir", "data", "train", "demo"], 2, "put options after the command: `mmfw COMMAND --data-dir"),
        (["runs", "list"], 2, "mmfw runs has no command list\nhint: run `mmfw runs` for the list"),
        (["predict", "a.b=1", RUN], 2, "put names first"),
        ([*CHECK, "test_seen"], 3, "no.csv: No such file"),
        ([*CHECK, "dev_seen,test_seen"], 3, "pass --split once per split"),
        (["check-submission", "data", "--data-dir", "data", "--split", "train"], 2, "data"),
        ([*CHECK, "test_seen.jsonl"], 3, "did you mean test_seen"),
        ([*CHECK, f"{DEFAULTS}/annotations/test_seen.jsonl"], 3, "did you mean test_seen"),
        ([*CHECK, "tset_seen"], 3, "did you mean test_seen? choose one of train"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistake_is_reported_with_the_next_step(
    user_world: Path, mmfw: MmfwRunner, command: list[str], code: int, message: str
) -> None:
    before = sorted(user_world.rglob("*"))
    mmfw(*command, code=code)
    assert message.format(folder=user_world.as_posix()) in mmfw.err.replace("'", "").replace('"', "").replace("\\", "/")
    assert "Traceback" not in mmfw.err
    assert sorted(user_world.rglob("*")) == before, "nothing may be written"


def test_json_error_is_on_the_last_line_of_stdout(user_world: Path, mmfw: MmfwRunner) -> None:
    error = mmfw.json("predict", "nope", "--save-dir", "save", code=2)["error"]
    assert "nope" in error["message"] and "mmfw runs" in error["hint"]
    assert "--seeed" in mmfw.json("train", "--seeed", "1", code=2)["error"]["message"]
    mmfw("train", "--seeed", "1", code=2)
    assert mmfw.out == "", "JSON must be printed only with --json"


def test_dataset_is_converted_to_the_folder_where_it_was_missing(user_world: Path, mmfw: MmfwRunner) -> None:
    folder_options = ["--data-dir", "not yet"]
    commands: list[str] = []
    for command, code in (("train mmbt_grid", 3), ("check-submission a.csv --split train", 3), ("doctor", 0)):
        mmfw(*command.split(), *folder_options, code=code)
        commands += re.findall("`(mmfw convert .*?)`", mmfw.out + mmfw.err)
    assert len(commands) == 3 and len(set(commands)) == 1
    mmfw(*({"ARCHIVE": "unpacked"}.get(word, word) for word in split_command(commands[0])[1:]))
    assert "mmfw convert" not in mmfw("doctor", *folder_options)


def test_unwritable_folder_is_named_with_a_hint_with_fake_refusal(
    user_world: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(user_world / "data"))

    monkeypatch.setattr("mmf_win.commands.convert.convert", refuse)
    mmfw("convert", "--zip", "unpacked", code=3)
    error, hint = mmfw.err.splitlines()
    assert error == f"error: {user_world / 'data'}: Permission denied" and "choose another folder" in hint


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        *(("..", "run"), ("", "run"), ("a/b", "a-b"), ("-x", "x")),
        *(("lr=1", "lr-1"), ("nul", "_nul"), ("-nul", "_nul"), ("Sweeps", "run")),
        ("a\x1b\u202eb", "a-u001b-u202eb"),
    ],
)
def test_invalid_run_name_is_rejected_with_a_valid_one(user_dir: Path, mmfw: MmfwRunner, name: str, fit: str) -> None:
    arguments = ["train", "demo", "--data-dir", str(user_dir), "--name"]
    assert f"hint: use `--name {fit}`\n" in mmfw(*arguments, name, code=2)
    mmfw(*arguments, fit, code=3)


def test_key_that_yaml_reads_as_a_boolean_is_reported_with_the_error(user_world: Path, mmfw: MmfwRunner) -> None:
    (user_world / "grid.yaml").write_text('template: {t: "echo {on}"}\n---\non: [1, 2]\n', encoding="utf-8")
    mmfw("sweep", "run", str(user_world / "grid.yaml"), "--dry-run", code=2)
    assert "on has no value" in mmfw.err and "YAML reads on as True" in mmfw.err
