"""Every command in a hint or next step is run by a test, in the state in which it is printed.

``FOLLOWED`` lists the commands that this module runs, ``ELSEWHERE`` the tests that run the others, and
``NOT_RUN`` the reasons why no test runs a command.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mmf_win.cli import COMMANDS
from mmf_win.dataset.convert import convert
from mmf_win.paths import MmfPaths
from mmf_win.runs import outcomes
from mmf_win.upstream.install import find_mmf
from tests.worlds import hostile_archives, tiny_mmf
from tests.worlds.memes import PASSWORD, dataset_files, make_encrypted_zip, without_images
from tests.worlds.tools import MmfwRunner, split_command

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """State in which a command prints a hint.

    Attributes:
        command: The command; ``{dir}`` is the user's folder.
        code: Its exit code.
        prepare: Creates the state.
        argument: The value for placeholders in capitals.
        option: The options to add to ``command``, if the hint names only options.
        is_repaired: Whether ``command`` succeeds after the hint was followed.
    """

    command: str
    code: int
    prepare: Callable[[MmfPaths, Path], object] = lambda mmf_paths, folder: None
    argument: str = "{dir}/memes.zip"
    option: str = ""
    is_repaired: bool = False


def forget_origin(mmf_paths: MmfPaths, folder: Path) -> None:
    """Remove the manifest, and damage an image."""
    for name in ("SHA256SUMS", "SHA256SUMS.json"):
        (mmf_paths.dataset.root / name).unlink()
    hostile_archives.flip_byte(mmf_paths.dataset.images / "img/00003.png", 100)


def write_other_archive(mmf_paths: MmfPaths, folder: Path) -> None:
    """Write an archive other than the one that the dataset was converted from."""
    hostile_archives.write_zip(folder / "other.zip", {**dataset_files(), "more.txt": b"more"})


def damage_manifest(mmf_paths: MmfPaths, folder: Path) -> None:
    """Write another archive, and truncate the manifest."""
    write_other_archive(mmf_paths, folder)
    hostile_archives.truncate_file(mmf_paths.dataset.root / "SHA256SUMS")


FOLLOWED = {
    "upstream/install: mmfw setup": Case("features status demo", 6, lambda *_: shutil.rmtree(find_mmf().root)),
    "runs/lookup: mmfw runs": Case("predict nope", 2),
    "runs/presets: mmfw train": Case("train mmbt_gird --data-dir {dir}", 2),
    "runs/presets: mmfw convert": Case("train {dir}/memes.zip", 2),
    "dataset/convert: --force": Case("convert --zip {dir}/other.zip", 3, write_other_archive, option="--force"),
    "integrity/manifest: mmfw repair": Case("convert --zip {dir}/other.zip", 3, damage_manifest),
    "errors: --password": Case(
        "convert --zip {dir}/locked.zip --data-dir {dir}/new",
        4,
        lambda _, folder: make_encrypted_zip(folder / "locked.zip", dataset_files()),
        option=f"--password {PASSWORD}",
    ),
    "dataset/convert: mmfw convert": Case(
        "repair dataset --source {dir}/memes.zip", 3, forget_origin, is_repaired=True
    ),
    "dataset/layout: --allow-missing": Case(
        "convert --zip {dir}/lacking.zip --data-dir {dir}/new",
        3,
        lambda _, folder: hostile_archives.write_zip(folder / "lacking.zip", without_images(dataset_files(), [1])),
        option="--allow-missing",
    ),
    "commands/convert: mmfw convert": Case("convert", 2),
    "commands/train: mmfw runs": Case("train", 2),
}

_DEMO = "test_demo_is_stopped_resumed_killed_verified_and_predicted"
_ARCHIVE = "test_refused_archive_is_converted_by_following_the_hint"
ELSEWHERE = {
    "sniffing: mmfw convert": _ARCHIVE,
    "commands/track: mmfw sweep": "test_uploading_a_sweep_without_runs_is_an_error",
    "commands/track: mmfw track": "test_data_of_a_run_is_sent_once",
    "tracking/follower: mmfw track": "test_upload_is_completed_after_follower_was_killed",
    "tracking/clearml_datasets: mmfw convert": "test_nothing_is_sent_to_a_stub_before_verification_and_licence_consent",
    "tracking/clearml_datasets: mmfw repair": "test_nothing_is_sent_to_a_stub_before_verification_and_licence_consent",
    "commands/sweep: mmfw sweep": "test_printed_command_resumes_stopped_sweep",
    "commands/sweep: --failed": "test_printed_commands_show_failed_tasks_and_run_them_again",
    "cli: mmfw doctor": "test_report_without_runs_describes_the_machine",
    "cli: mmfw train": "test_profile_reports_where_time_is_spent",
    "doctor/survey: mmfw setup": "test_torch_prints_only_the_command_to_stdout",
    "dataset/unpack: --allow-missing": "test_dataset_without_a_split_is_converted_by_following_the_hint",
    "commands/verify: mmfw repair": "test_command_in_the_hint_of_verify_repairs_the_damage",
    "commands/doctor: --report": "test_report_has_diagnostics_and_logs_only_on_request",
    "inputs/verification: mmfw repair": "test_command_in_the_hint_of_verify_repairs_the_damage",
    "inputs/verification: mmfw features": "test_model_that_cannot_be_downloaded_is_fetched_from_a_folder",
    "inputs/verification: mmfw demo": _DEMO,
    "inputs/feature_lmdb: mmfw features": "test_printed_command_rebuilds_a_damaged_lmdb",
    "inputs/feature_lmdb: mmfw repair": "test_features_without_their_archive_are_replaced_from_another_one",
    "runs/preflight: mmfw features": "test_user_memes_without_region_features_are_refused_with_hint",
    "runs/preflight: mmfw train": "test_changed_learning_rate_needs_hinted_override",
    "runs/published_weights: mmfw train": "test_training_from_weights_starts_at_update_0",
    "inputs/verification: --allow-missing": "test_rows_without_features_are_excluded_only_with_allow_missing",
    "runs/outcomes: mmfw predict": "test_run_with_a_damaged_checkpoint_continues_as_hinted",
    "dataset/annotations: mmfw convert": "test_dataset_is_converted_to_the_folder_where_it_was_missing",
    "doctor/verify_all: mmfw convert": "test_verify_reports_unusable_images_accepted_by_an_earlier_version",
    "runs/folder: mmfw train": "test_weights_of_an_unreadable_run_start_a_new_run_as_hinted",
    "runs/folder: mmfw report": "test_run_without_a_page_names_the_command_and_later_shows_the_page",
    "runs/folder: mmfw runs": "test_unreadable_run_is_removed_as_hinted",
    "results/report/pages: mmfw predict": "test_missing_or_invalid_prediction_is_created_by_hinted_command",
    "runs/outcomes: mmfw train": "test_model_that_cannot_be_built_is_reported_with_the_end_of_its_output",
    "untrusted": "test_checkpoint_of_old_format_loads_and_classes_need_trust",
    "runs/user_code: --trust": "test_spawned_data_loader_workers_find_mmf_and_patches",
    "compat/transformers: --trust": "test_code_in_model_folder_runs_only_with_trust",
    "disk": "test_full_disk_stops_the_run_and_leaves_its_last_checkpoint_intact",
    "nan": "test_nan_loss_stops_run_before_it_reaches_weights",
    "nan of an operation": "test_nan_loss_stops_run_before_it_reaches_weights",
    "nan in fp16": "test_hint_after_nan_in_fp16_resumes_in_full_precision",
    "killed": "test_run_killed_during_a_save_resumes_from_the_previous_save",
    "commands/check_submission: mmfw convert": "test_following_the_hint_for_excluded_memes_makes_a_valid_submission",
    "commands/check_submission: mmfw predict": "test_missing_or_invalid_prediction_is_created_by_hinted_command",
    "commands/features: mmfw features": "test_unpublished_features_must_be_provided_by_the_user",
    "export/exporter: --tolerance": "test_row_with_a_different_probability_is_named_and_nothing_is_written",
    "commands/export: --int": "test_region_features_are_inputs_and_int8_is_refused_if_it_costs_too_much_auroc",
    "export/exporter: --max-loss": "test_region_features_are_inputs_and_int8_is_refused_if_it_costs_too_much_auroc",
    "commands/train: mmfw predict": "test_published_weights_are_scored_on_splits_of_paper_without_training",
    "commands/train: mmfw train": "test_training_from_weights_starts_at_update_0",
    "commands/demo: mmfw train": _DEMO,
    "commands/demo: mmfw predict": _DEMO,
    "commands/demo: mmfw demo": _DEMO,
    "commands/setup: mmfw demo": _DEMO,
}

_READS = "it only shows information"
_CHOICE = "it names an option for another choice, which is tested with its own command"
_PRESET = "the user chooses the preset; tests/endtoend/test_training.py trains some"
NOT_RUN = {
    "runs/override_rules: mmfw predict": "it names the command that does what was tried with another",
    "runs/override_rules: mmfw train": _PRESET,
    "upstream/overrides: mmfw train": _PRESET,
    "commands/convert: mmfw train": _PRESET,
    "commands/runs: mmfw train": _PRESET,
    "sweeps/folder: mmfw sweep": _PRESET,
    "upstream/sources: mmfw setup": "GitHub; tests/upstream/test_install.py takes MMF from a server that "
    "answers as it does",
    "errors: --password-file": _CHOICE,
    "upstream/config: mmfw setup": "as for upstream/install",
    "upstream/versions: mmfw setup": "as for upstream/install",
    "upstream/zoo: mmfw setup": "as for upstream/install",
    "upstream/overrides: mmfw setup": "GitHub, as for upstream/sources",
    "features/builder: mmfw features": _CHOICE,
    "dataset/convert: --data-dir": _CHOICE,
    "dataset/region_features: --data-dir": _CHOICE,
    "dataset/region_features: --force": _CHOICE,
    "dataset/region_features: mmfw features": _CHOICE,
    "runs/lookup: mmfw predict": "it names the command that does what was tried with another",
    "runs/prediction: mmfw predict": "it names the command that does what was tried with another",
    "runs/lookup: mmfw train": _PRESET,
    "commands/export: mmfw predict": "it names what an exported model is compared with",
    "export/exporter: mmfw predict": "it names what an exported model is compared with",
    "export/exporter: --int": "it says to leave out --int8",
    "export/exporter: --split": "only the user knows which split has labels",
    "export/exported_model: mmfw export": "only the user knows which run",
    "runs/distillation: --teacher": "only the user knows which file",
    "runs/distillation: mmfw predict": "only the user knows which run is the teacher",
    "runs/training: --name": "it says to leave out --name",
    "sweeps/launch: --data-dir": _CHOICE,
    "runs/training: mmfw train": "only the user knows which preset it was",
    "cuda_oom": "a full GPU; the hint names no command",
    "host_oom": "a full memory; --batch-size is tested by itself",
    "config": "the hint names no command",
    "network": "the hint names no command",
    "mmf": _READS,
    "runs/outcomes: mmfw doctor": _READS,
    "upstream/install: mmfw doctor": _READS,
    "commands/demo: mmfw doctor": _READS,
    "sweeps/launch: mmfw sweep": _READS,
    "errors: mmfw verify": _READS,
    "commands/doctor: mmfw doctor": _READS,
    "commands/setup: mmfw doctor": _READS,
    "commands/demo: mmfw convert": "the real dataset is the user's",
    "commands/features: mmfw setup": "as for upstream/install",
    "commands/train: mmfw setup": "as for upstream/install",
    "commands/predict: mmfw features": "PRESET and --source are the user's; as for inputs/verification",
    "commands/train: mmfw features": "PRESET and --source are the user's; as for inputs/verification",
    "commands/predict: mmfw predict": "an example of an ensemble, which test_predicting.py makes",
    "inputs/feature_lmdb: --data-dir": _CHOICE,
    "inputs/feature_lmdb: --force": _CHOICE,
    "runs/preflight: --features": _CHOICE,
    "commands/demo: --keep": _CHOICE,
    "commands/predict: --ensemble": _CHOICE,
    "commands/predict: --memes": _CHOICE,
    "commands/predict: --split": _CHOICE,
    "commands/predict: --text": _CHOICE,
    "commands/options: --yes": _CHOICE,
    "runs/plan: --batch-size": _CHOICE,
    "runs/plan: --cpu": _CHOICE,
    "runs/plan: --nnodes": _CHOICE,
    "runs/plan: --nproc": _CHOICE,
    "commands/train: --name": _CHOICE,
    "commands/track: --track": _CHOICE,
    "cli: --help": _READS,
    "commands/convert: --password-file": _CHOICE,
    "commands/progress: --ignore-known-fits": _CHOICE,
    "commands/train_profile: --init": "only the user knows which run",
    "doctor/verify_all: --allow-missing": _CHOICE,
    "runs/distillation: --teacher-weight": "it says to leave out --teacher-weight",
    "runs/preflight: --updates": "only the user knows how many updates",
    "runs/targets: --image": "only the user knows which image",
    "runs/targets: --memes": "only the user knows which file",
    "sweeps/planning: --sample": _CHOICE,
    "sweeps/ray_backend: --address": "a command of Ray for further machines",
    "sweeps/ray_backend: --head": "a command of Ray",
    "tracking/tracker: --allowed-hosts": "a command of MLflow",
    "upstream/overrides: --mmf": "GitHub, as for upstream/sources",
    "worker/launcher: --rdzv": "only the user knows the first machine",
    "commands/demo: mmfw ?": "it shows a command that it runs itself",
}


def _iter_named_commands(tree: ast.Module) -> Iterator[str]:
    """Yield the commands in a module's texts, except docstrings and help, and the options in its hints."""
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():  # --help
            skipped |= {id(child) for child in ast.walk(decorator)}
    names = "|".join(sorted(COMMANDS, key=len, reverse=True))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield from re.findall(rf"\bmmfw (?:{names})\b", node.value)
        for hint in _iter_hints(node):
            yield from re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(_iter_texts(hint)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "format_command":
            arguments = [word.value if isinstance(word, ast.Constant) else "?" for word in node.args[:2]]
            if arguments[0] == "mmfw":
                yield f"mmfw {arguments[1]}"


def _iter_hints(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the hint that is passed to a call, or that is assigned to a variable or class attribute named hint."""
    if isinstance(node, ast.keyword) and node.arg == "hint":
        yield node
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "hint":
        yield node


def _iter_texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in an expression, without the commands in backticks."""
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield re.sub("`mmfw [^`]*(`|$)", "", child.value)


def test_every_command_in_a_hint_is_run_by_a_test_or_excluded() -> None:
    printed = set(outcomes._HINTS)
    for path in (ROOT / "mmf_win").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = path.relative_to(ROOT / "mmf_win").with_suffix("").as_posix()
        printed |= {f"{module}: {command}" for command in _iter_named_commands(tree)}
    listed = [*FOLLOWED, *ELSEWHERE, *NOT_RUN]
    assert sorted(listed) == sorted(printed)
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in ELSEWHERE.values() if f"def {name}(" not in tests] == []


@pytest.mark.parametrize("name", FOLLOWED)
def test_command_in_the_hint_succeeds(world: MmfPaths, user_dir: Path, name: str, mmfw: MmfwRunner) -> None:
    case = FOLLOWED[name]
    case.prepare(world, user_dir)
    arguments = [word.format(dir=user_dir) for word in case.command.split()]
    mmfw(*arguments, code=case.code)
    hints = "".join(line for line in mmfw.err.splitlines(True) if line.startswith("hint: "))
    argument = case.argument.format(dir=user_dir)
    if case.option:
        option, _, value = case.option.partition(" ")
        assert option in hints
        mmfw(*arguments, option, *([value] if value else []))
    else:
        commands = re.findall("`mmfw (.*?)`", hints)
        assert commands
        for command in commands:
            filled_arguments = [argument if re.fullmatch("[A-Z_]+", word) else word for word in split_command(command)]
            mmfw(*filled_arguments)
    if case.is_repaired:
        mmfw(*arguments)


@pytest.mark.torch
def test_model_that_cannot_be_downloaded_is_fetched_from_a_folder(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    for name, value in {"HF_HUB_OFFLINE": "1", "HF_HOME": "hf", "MMF_CACHE_DIR": "cache"}.items():
        monkeypatch.setenv(name, value if value == "1" else str(user_dir / value))
    folder_options = ["--data-dir", str(user_dir / "data"), "--save-dir", str(user_dir / "save")]
    archive = hostile_archives.write_zip(user_dir / "memes.zip", dataset_files())
    convert(archive, MmfPaths.resolve(user_dir / "data"))
    mmfw("train", "text_bert", *folder_options, code=6)
    [command] = re.findall("`mmfw (.*?)`", mmfw.err)
    tiny_mmf.build_bert(user_dir / "copy" / "bert-base-uncased")
    filled_arguments = [{"FOLDER": str(user_dir / "copy")}.get(word, word) for word in split_command(command)]
    mmfw(*filled_arguments)
    mmfw("verify", "text_bert", *folder_options[:2])
    assert not (user_dir / "save").exists()
