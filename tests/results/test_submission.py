"""Every way in which a prediction file can be wrong, told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.predictions import Prediction, write_predictions
from mmf_win.errors import DataError
from mmf_win.results import submission

IDS = ["8291", "42953", "12"]
GOOD = "id,proba,label\n8291,0.25,0\n42953,1e-3,0\n12,1.0,1\n"


def checked(tmp_path: Path, content: str | bytes) -> tuple[list[str], list[str]]:
    """What is fatal and what is not in a file of this content."""
    path = tmp_path / "predictions.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    problems = submission.check(path, IDS).problems
    return [p.text for p in problems if p.fatal], [p.text for p in problems if not p.fatal]


def test_what_mmfw_writes_is_right(tmp_path: Path) -> None:
    rows = [Prediction("8291", 0.1 + 0.2, 0), Prediction("42953", 1e-9, 0), Prediction("12", 1.0, 1)]
    path = tmp_path / "out.csv"
    write_predictions(path, rows)
    assert submission.check(path, IDS) == submission.Submission(tuple(rows), ())


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("12,1.0,1\n", "", "1 id is missing (id 12)"),
        ("12,1.0,1\n", "13,1.0,1\n", "1 id is not of this split (id 13)"),
        ("12,1.0,1\n", "12,1.0,1\n12,1.0,1\n", "1 id is there more than once (id 12)"),
        ("12,1.0,1", "12.0,1.0,1", "1 row whose id is not a whole number (line 4)"),
        ("12,1.0,1", "x,1.0,1", "1 row whose id is not a whole number (line 4)"),
        ("0.25", "nan", "1 row whose proba is NaN (line 2)"),
        ("0.25", "high", "1 row whose proba is not a number (line 2)"),
        ("0.25", "0_2", "1 row whose proba is not a number (line 2)"),
        ("0.25", "٠.٢٥", "1 row whose proba is not a number (line 2)"),
        ("12,1.0,1", f"{'9' * 5000},1.0,1", "1 row whose id is not a whole number (line 4)"),
        ("0.25", "", "1 row whose proba is not a number (line 2)"),
        ("0.25", "1.01", "1 row whose proba is not within 0 and 1 (line 2)"),
        ("0.25", "-0.1", "1 row whose proba is not within 0 and 1 (line 2)"),
        ("0.25", "inf", "1 row whose proba is not within 0 and 1 (line 2)"),
        ("12,1.0,1", "12,1.0,2", "1 row whose label is neither 0 nor 1 (line 4)"),
        ("12,1.0,1", "12,1.0,1.0", "1 row whose label is neither 0 nor 1 (line 4)"),
        ("12,1.0,1", "12,1.0", "1 row without exactly 3 values (line 4)"),
        ("id,proba,label", "id,label,proba", "its first line must be id,proba,label, not 'id,label,proba'"),
        ("id,proba,label\n", "", "its first line must be id,proba,label, not '8291,0.25,0'"),
        (",", ";", "its values are separated by semicolons instead of commas"),
        (",", "\t", "its values are separated by tabs instead of commas"),
    ],
)
def test_what_is_fatal_is_told_with_its_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    fatal, _ = checked(tmp_path, GOOD.replace(old, new))
    assert told in fatal


@pytest.mark.parametrize("content", ["", "8291,0.25,0\n", GOOD.replace("id,proba", "id, proba")])
def test_no_id_is_called_missing_where_the_header_is_wrong(tmp_path: Path, content: str) -> None:
    fatal, _ = checked(tmp_path, content)
    assert fatal and not any("missing" in text for text in fatal)


def test_a_file_in_another_encoding_or_of_nothing_is_told(tmp_path: Path) -> None:
    assert checked(tmp_path, GOOD.encode("utf-16"))[0] == ["it is not a text file in UTF-8"]
    assert "it is empty" in checked(tmp_path, "")[0]
    assert "it is empty" in checked(tmp_path, "\ufeff\r\n")[0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("\ufeff" + GOOD, "byte order mark"),
        (GOOD.replace("\n", "\r\n"), r"its lines end with \r\n"),
        (GOOD.replace("\n", "\r"), r"\r instead of \n"),
        (GOOD.replace("\n", "\n\n"), "4 lines are blank"),
        ("id,proba,label\n12,1.0,1\n8291,0.25,0\n42953,1e-3,0\n", "another order"),
    ],
)
def test_what_a_careful_reader_gets_over_is_a_warning(tmp_path: Path, content: str, told: str) -> None:
    fatal, warnings = checked(tmp_path, content)
    assert fatal == []
    assert len(warnings) == 1 and told in warnings[0]
    found = submission.check(tmp_path / "predictions.csv", IDS)
    assert found.usable
    probas = {row.id: row.proba for row in found.predictions}
    assert probas == {"8291": 0.25, "42953": 1e-3, "12": 1.0}


def test_quotes_around_the_names_of_the_columns_are_right(tmp_path: Path) -> None:
    assert checked(tmp_path, GOOD.replace("id,proba,label", '"id","proba","label"')) == ([], [])


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    content = "\ufeffid,proba,label\r\n8291,nan,0\r\n8291,0.5,0\r\nx,2,7\r\n99,0.1,1,\r\n"
    fatal, warnings = checked(tmp_path, content)
    assert fatal == [
        "1 row whose proba is NaN (line 2)",
        "1 row whose id is not a whole number (line 4)",
        "1 row whose proba is not within 0 and 1 (line 4)",
        "1 row whose label is neither 0 nor 1 (line 4)",
        "1 row without exactly 3 values (line 5)",
        "2 ids are missing (ids 42953, 12)",
        "1 id is there more than once (id 8291)",
    ]
    assert len(warnings) == 2


def test_many_faults_of_one_kind_are_one_line(tmp_path: Path) -> None:
    rows = "".join(f"{id_},2,0\n" for id_ in range(10_000))
    fatal, _ = checked(tmp_path, f"id,proba,label\n{rows}")
    assert "10000 rows whose proba is not within 0 and 1 (lines 2, 3, 4 …)" in fatal
    assert "9998 ids are not of this split (ids 0, 1, 2 …)" in fatal


def test_bytes_that_the_csv_module_refuses_are_told(tmp_path: Path) -> None:
    fatal, _ = checked(tmp_path, GOOD + '12,"' + "x" * 200_000)
    assert any("is not CSV" in text for text in fatal)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.csv"):
        submission.check(tmp_path / "nowhere.csv", IDS)


LEFT_OUT = ["77", "5"]


@pytest.mark.parametrize(
    ("rows", "fatal", "missing"),
    [
        ("77,0.5,0\n5,0.5,0\n", None, (0, 0)),
        ("", "2 ids are missing that the full split has", (2, 2)),
        ("5,0.5,0\n", "1 id is missing that the full split has", (1, 1)),
        ("77,0.5,0\n5,0.5,0\n13,0.5,0\n", "1 id is not of this split (id 13)", (0, 0)),
        ("77,0.5,0\n5,0.5,0\n5,0.5,0\n", "1 id is there more than once (id 5)", (0, 0)),
    ],
    ids=["full", "without what was left out", "without one of them", "with a stranger", "twice"],
)
def test_a_submission_needs_the_ids_that_were_left_out_at_conversion(
    tmp_path: Path, rows: str, fatal: str | None, missing: tuple[int, int]
) -> None:
    path = tmp_path / "predictions.csv"
    path.write_text(GOOD + rows, encoding="utf-8", newline="\n")
    found = submission.check(path, IDS, LEFT_OUT)
    assert [p.text.startswith(fatal or "") for p in found.problems] == ([] if fatal is None else [True])
    assert (found.missing, found.missing_left_out) == missing
    assert found.usable is (fatal is None)


def test_the_order_is_judged_by_the_ids_whose_place_is_known(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    head, *rows = GOOD.splitlines(keepends=True)
    mixed = [rows[0], "5,0.5,0\n", rows[1], "77,0.5,0\n", rows[2]]
    path.write_text("".join([head, *mixed]), encoding="utf-8", newline="\n")
    assert submission.check(path, IDS, LEFT_OUT).problems == ()
    path.write_text("".join([head, *reversed(mixed)]), encoding="utf-8", newline="\n")
    [problem] = submission.check(path, IDS, LEFT_OUT).problems
    assert "order" in problem.text and not problem.fatal


def test_what_is_missing_is_counted_with_what_is_only_missing_here(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    path.write_text("".join(GOOD.splitlines(keepends=True)[:2]), encoding="utf-8", newline="\n")
    found = submission.check(path, IDS, LEFT_OUT)
    assert (len(found.predictions), found.missing, found.missing_left_out) == (1, 4, 2)
