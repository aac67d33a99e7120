"""The table of patches, and those that need neither MMF nor torch to be tried; the MMF here is made up."""

from __future__ import annotations

import csv
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace

import pytest

from mmf_win.errors import MmfError
from mmf_win.upstream.versions import ONLY_IN
from mmf_win.worker import compat
from mmf_win.worker.compat import importing, mmf_models, python, transformers
from mmf_win.worker.compat.importing import Edit
from mmf_win.worker.compat.omegaconf import refuse_demjson
from mmf_win.worker.compat.patch import RC10, RC12, Context, Needed, Patch, missing


@pytest.mark.parametrize("each", compat.PATCHES, ids=lambda each: each.name)
def test_every_patch_says_what_it_is_for(each: Patch) -> None:
    assert each.mmf <= set(ONLY_IN)
    assert each.mmf
    assert each.library
    assert len(each.problem) > 30, "a sentence: what breaks, and where"
    assert len(each.problem) < 110, "one line of a table"


def test_the_table_has_every_patch_once() -> None:
    found = {
        id(value)
        for module in iter_modules(compat.__path__)
        if module.name not in ("__main__", "stand_ins")  # torch may not be installed
        for value in vars(import_module(f"{compat.__name__}.{module.name}")).get("PATCHES", ())
    }
    assert found == {id(each) for each in compat.PATCHES}
    assert len({each.name for each in compat.PATCHES}) == len(compat.PATCHES)


def made_up_mmf(root: Path, **modules: str) -> Context:
    """A package ``mmf`` of these modules."""
    (root / "mmf").mkdir(parents=True)
    (root / "mmf" / "__init__.py").write_text("", encoding="utf-8")
    for name, text in modules.items():
        (root / "mmf" / f"{name}.py").write_text(text, encoding="utf-8")
    return Context(root, "1.0.0rc10")


def editing(mmf: frozenset[str], needed: Needed = lambda context: True) -> Patch:
    """A patch that replaces some words of ``mmf.work``."""
    return Patch("", "", mmf, "", edits=(Edit("mmf.work", "old words", "new words"),), needed=needed)


class TestEditingPatches:
    def test_are_needed_while_mmf_has_the_words(self, tmp_path: Path) -> None:
        each = editing(RC10)
        assert each.active(made_up_mmf(tmp_path / "a", work="some old words"))
        assert not each.active(made_up_mmf(tmp_path / "b", work="words of the user's own"))
        assert not each.active(made_up_mmf(tmp_path / "c"))

    def test_are_for_their_versions_only(self, tmp_path: Path) -> None:
        assert not editing(RC12).active(made_up_mmf(tmp_path, work="some old words"))

    def test_are_not_needed_where_the_package_is_there(self, tmp_path: Path) -> None:
        context = made_up_mmf(tmp_path, work="some old words")
        for package, active in (("json", False), ("no_such_package", True)):
            assert editing(RC10, missing(package)).active(context) is active


def test_anomaly_detection_stays_on_where_it_is_asked_for(tmp_path: Path) -> None:
    """1.0.0rc10 always has it on, and the patch switches it off."""
    trainer = tmp_path / "mmf" / "trainers" / "base_trainer.py"
    trainer.parent.mkdir(parents=True)
    trainer.write_text("torch.autograd.set_detect_anomaly(True)", encoding="utf-8")
    anomaly = next(each for each in compat.PATCHES if each.name == "anomaly")
    assert anomaly.active(Context(tmp_path, "1.0.0rc10"))
    assert not anomaly.active(Context(tmp_path, "1.0.0rc10", detect_anomaly=True))


class TestInstall:
    def test_comes_once_and_before_mmf(self, tmp_path: Path) -> None:
        """In a process of its own, with a made-up MMF that is its own proof."""
        made_up_mmf(tmp_path, version='__version__ = "1.0.0rc10"\n')
        lines = [
            "import sys",
            "from pathlib import Path",
            "from mmf_win.worker import compat",
            f"root = Path({str(tmp_path)!r})",
            "first = compat.install(root, '1.0.0rc10')",
            "assert compat.install(root, '1.0.0rc10') is first",
            "assert sys.path.count(str(root.resolve())) == 1",
            "import mmf.version",
            "try: compat.install(root.parent, '1.0.0rc10')",
            "except RuntimeError as error: print(error)",
        ]
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
        )
        assert "before mmf is imported" in done.stdout

    def test_a_survey_lists_all_and_changes_nothing(self, tmp_path: Path) -> None:
        context = made_up_mmf(tmp_path, version="")
        path, meta_path = list(sys.path), list(sys.meta_path)
        survey = compat.survey(context.mmf_root, context.mmf_version)
        assert [each for each, _ in survey] == list(compat.PATCHES)
        assert (sys.path, sys.meta_path) == (path, meta_path)


class TestCsvReport:
    ROWS = ({"id": 8291, "proba": 0.25, "label": 0}, {"id": 1, "proba": 0.5, "label": 1})

    def test_has_no_blank_rows_on_any_system(self, user_dir: Path) -> None:
        path = user_dir / "report 报告.csv"
        python.csv_dump(SimpleNamespace(report=self.ROWS), str(path))
        assert path.read_bytes() == b"id,proba,label\n8291,0.25,0\n1,0.5,1\n"
        assert [p.name for p in user_dir.iterdir()] == [path.name]

    def test_a_failure_leaves_nothing_under_its_name(self, tmp_path: Path) -> None:
        rows = [*self.ROWS, {"id": 2, "unheard of": 1}]
        with pytest.raises(ValueError, match="unheard of"):
            python.csv_dump(SimpleNamespace(report=rows), str(tmp_path / "report.csv"))
        assert not (tmp_path / "report.csv").exists()

    def test_texts_of_any_language_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "report.csv"
        python.csv_dump(SimpleNamespace(report=[{"id": 1, "text": "Привет,\n世界"}]), str(path))
        with path.open(encoding="utf-8", newline="") as file:
            assert list(csv.DictReader(file)) == [{"id": "1", "text": "Привет,\n世界"}]


class TestBertNames:
    def test_a_folder_is_asked_what_it_holds(self, user_dir: Path) -> None:
        config = user_dir / "config.json"
        config.write_text('{"model_type": "bert"}', encoding="utf-8")
        assert mmf_models.is_bert(str(user_dir))
        config.write_text('{"model_type": "roberta"}', encoding="utf-8")
        assert not mmf_models.is_bert(str(user_dir))

    def test_a_name_is_taken_as_mmf_takes_it(self) -> None:
        assert mmf_models.is_bert("bert-base-uncased")
        assert not mmf_models.is_bert("roberta-base")


class TestTransformersNames:
    def test_old_names_lead_to_where_the_models_are_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importing, "source_path", lambda module: Path(module))
        for old, new in {
            "transformers.modeling_bert": "transformers.models.bert.modeling_bert",
            "transformers.tokenization_auto": "transformers.models.auto.tokenization_auto",
            "transformers.configuration_gpt_neo": "transformers.models.gpt_neo.configuration_gpt_neo",
        }.items():
            assert transformers.target_of(old) == new

    def test_other_names_are_not_touched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importing, "source_path", lambda module: None)
        for name in ("transformers.modeling_nothing", "transformers.models.bert", "other.modeling_bert"):
            assert transformers.target_of(name) is None


def test_demjson_refuses_with_a_way_out() -> None:
    with pytest.raises(MmfError, match="demjson") as caught:
        refuse_demjson("{}")
    assert "KEY=VALUE" in str(caught.value.hint)


def test_a_url_is_no_text_link() -> None:
    assert python.follow("https://example.org/a.yaml") == "https://example.org/a.yaml"
