"""A process that stays warm, and what becomes of it; its model is a small one in ONNX, without torch."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

import mmf_win
from mmf_win import Predictor
from mmf_win.errors import DataError, DatasetError, MmfEnvironmentError, TrainingError, UnreadableImageError, UsageError
from mmf_win.files import json_bytes
from mmf_win.protocol import AttemptRequest, EventReader
from mmf_win.protocol.attempt import PredictTask
from mmf_win.protocol.serving import serve_predictions
from mmf_win.supervise import ProcessTree

pytest.importorskip("onnxruntime", reason="could not import onnxruntime")
pytest.importorskip("tokenizers", reason="could not import tokenizers")
onnx = pytest.importorskip("onnx", reason="could not import onnx")
np = pytest.importorskip("numpy", reason="could not import numpy")
PIL = pytest.importorskip("PIL.Image", reason="could not import PIL.Image")

WHITE = 255  # the grey of an image at which the model fails with an error of its own


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of temporary files, which must be empty at the end; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="мем ") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        gc.collect()
        assert list(Path(folder).glob("mmfw*")) == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as ``mmfw export`` makes it; its answer is the mean of an image's greys."""
    from onnx import TensorProto, helper, numpy_helper

    def constant(name: str, value: Any) -> Any:
        return numpy_helper.from_array(np.array(value), name)

    constants = [constant("all", [1, 2, 3]), constant("axis", [1]), constant("one", np.float32(1))]
    constants += [constant("white", np.float32(255)), constant("table", np.zeros(WHITE, np.float32))]
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels", "all"], ["mean"], keepdims=0),
        helper.make_node("Cast", ["mean"], ["grey"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "grey"], ["nothing"]),  # out of bounds for white
        helper.make_node("Div", ["mean", "white"], ["share"]),
        helper.make_node("Add", ["share", "nothing"], ["hateful"]),
        helper.make_node("Sub", ["one", "hateful"], ["benign"]),
        helper.make_node("Unsqueeze", ["hateful", "axis"], ["right"]),
        helper.make_node("Unsqueeze", ["benign", "axis"], ["left"]),
        helper.make_node("Concat", ["left", "right"], ["probabilities"], axis=1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, [None, None, None, 3])
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2])
    graph = helper.make_graph(nodes, "greys", [image], [output], constants)
    folder = tmp_path / "модель 型"
    folder.mkdir()
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    about = {"run": "greys/1", "inputs": [{"name": "image", "dtype": "uint8"}], "image": True}
    about |= {"text": None, "features": None, "versions": {"onnxruntime": "1"}}
    (folder / "model.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Images of ever lighter greys, whose numbers are 0, 0.1, 0.2 …"""
    paths = [tmp_path / f"grey {number}.png" for number in range(10)]
    for number, path in enumerate(paths):
        PIL.new("RGB", (8, 8), (round(25.5 * number),) * 3).save(path)
    return paths


def near(*probas: float) -> Any:
    return pytest.approx(list(probas), abs=0.01)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that predictors of the test have started, the newest last."""
    processes: list[subprocess.Popen[bytes]] = []

    class WatchedTree(ProcessTree):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self.process)

    monkeypatch.setattr("mmf_win.runs.model_process.ProcessTree", WatchedTree)
    return processes


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that predicts."""
    if sys.platform == "win32":
        os.kill(process.pid, signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGKILL)


def test_the_package_itself_imports_nothing_that_takes_long() -> None:
    code = "import sys, mmf_win; print(*{'torch', 'numpy', 'multiprocessing'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    assert told.split() == []
    assert "Predictor" in dir(mmf_win)
    with pytest.raises(AttributeError, match="no attribute 'predictors'"):
        mmf_win.predictors  # noqa: B018


def test_memes_are_read_as_they_are_needed_and_answered_in_order_in_threads_too(
    model: Path, images: list[Path]
) -> None:
    read: list[int] = []

    def pairs() -> Iterator[tuple[Path, str]]:
        for number, path in enumerate(images):
            read.append(number)
            yield path, "text"

    with Predictor(model, batch_size=4) as predictor:
        found = predictor.predict_many(pairs())
        assert read == []
        first = next(found)
        assert read == [0, 1, 2, 3]
        assert [first, *found] == near(*(number / 10 for number in range(10)))
        assert list(predictor.predict_many([])) == []
        with ThreadPoolExecutor(4) as pool:
            many = list(pool.map(lambda path: predictor.predict(path, "text"), 5 * images))
        assert many == 5 * [predictor.predict(path, "text") for path in images]


def test_an_image_is_a_path_the_bytes_of_a_file_or_one_of_pillow(
    model: Path, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = images[5].read_bytes()
    with Predictor(str(model)) as predictor:
        given: list[Any] = [images[5], str(images[5]), images[5].name, content, bytearray(content)]
        assert list(predictor.predict_many((each, "") for each in given)) == near(*5 * [0.5])
        palette = PIL.new("P", (4, 4), 1)
        palette.putpalette([0, 0, 0, 10, 90, 110])
        clear = PIL.new("RGBA", (3, 5), (10, 200, 30, 40))
        for image in (palette, clear, clear.convert("LA"), clear.convert("CMYK"), clear.convert("I")):
            image.save(tmp_path / "same.tiff")
            assert predictor.predict(image, "") == predictor.predict(tmp_path / "same.tiff", "")


def test_a_bad_meme_is_named_those_before_it_are_answered_and_the_process_lives_on(
    model: Path, images: list[Path], tmp_path: Path, temporary: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    cut = tmp_path / "cut 梗.png"
    PIL.effect_noise((64, 64), 50).save(cut)
    cut.write_bytes(cut.read_bytes()[:900])
    opened = PIL.open(cut)
    bad: list[tuple[Any, Any, type[Exception], str]] = [
        (cut, "", UnreadableImageError, f"{cut}: "),
        (cut.read_bytes(), "", UnreadableImageError, "the image: "),
        (b"", "", UnreadableImageError, "the image: cannot identify image file 'the image'"),
        (opened, "", UnreadableImageError, "the image: image cannot be read ("),
        (tmp_path / "none.png", "", DatasetError, f"{tmp_path / 'none.png'}: image not found"),
        (tmp_path, "", DatasetError, f"{tmp_path}: image not found"),
        (5, "", UsageError, "the image has the unsupported type int"),
        (images[0], None, UsageError, "None: not a text"),
        (images[0], "\ud83d", UsageError, r"'\ud83d': not a text"),
    ]
    with Predictor(model) as predictor:
        for image, text, kind, message in bad:
            with pytest.raises(kind) as raised:
                predictor.predict(image, text)
            assert type(raised.value) is kind and str(raised.value).startswith(message)
            assert str(temporary) not in str(raised.value) and "\n" not in str(raised.value)
            found = predictor.predict_many([(images[1], ""), (images[2], ""), (image, text), (images[3], "")])
            assert [next(found), next(found)] == near(0.1, 0.2)
            with pytest.raises(kind):
                next(found)
        opened.close()
        assert predictor.predict(images[9], "") == pytest.approx(0.9, abs=0.01)
        assert len(started) == 1
    predictor.close()
    for asked in (lambda: predictor.predict(images[0], ""), lambda: next(predictor.predict_many([(b"", "")]))):
        with pytest.raises(UsageError, match="this predictor is closed"):
            asked()


def test_a_process_that_dies_is_started_anew_once_for_a_request(
    model: Path, images: list[Path], started: list[subprocess.Popen[bytes]]
) -> None:
    with Predictor(model) as predictor:
        kill(started[-1])
        assert predictor.predict(images[4], "") == pytest.approx(0.4, abs=0.01)
        assert len(started) == 2
        with pytest.raises(TrainingError, match="the model process died twice on this request: ") as raised:
            predictor.predict(PIL.new("RGB", (8, 8), "white"), "")
        assert "the end of its output:" in str(raised.value.hint)
        assert predictor.predict(images[4], "") == pytest.approx(0.4, abs=0.01), "the next one has one again"


def test_what_gives_the_pairs_may_fail_or_give_none(model: Path, images: list[Path]) -> None:
    def pairs() -> Iterator[tuple[Path, str]]:
        yield images[2], ""
        raise LookupError("the caller's own")

    with Predictor(model, batch_size=4) as predictor:
        found = predictor.predict_many(pairs())
        assert next(found) == pytest.approx(0.2, abs=0.01)
        with pytest.raises(LookupError, match="the caller's own"):
            next(found)
        for none in ((images[1],), images[1], "ab", None):
            with pytest.raises(UsageError, match="not a pair of an image and a text"):
                list(predictor.predict_many([none]))  # type: ignore[list-item]
        with pytest.raises(DatasetError, match="image not found"):
            predictor.predict("x" * 5000, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_fork_is_refused_and_its_end_harms_nothing(model: Path, images: list[Path]) -> None:
    code = f"""
import os, sys
from mmf_win import Predictor
from mmf_win.errors import UsageError
predictor = Predictor({str(model)!r})
if not (child := os.fork()):
    try:
        predictor.predict({str(images[1])!r}, "")
    except UsageError as error:
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(predictor.predict({str(images[3])!r}, ""))
"""
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    assert float(told.stdout) == pytest.approx(0.3, abs=0.01) and told.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no file that is open")
def test_a_cleaned_folder_of_temporary_files_does_no_lasting_harm(
    model: Path, images: list[Path], temporary: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    with Predictor(model) as predictor:
        for folder in temporary.glob("mmfw-*"):
            shutil.rmtree(folder, ignore_errors=True)  # the process may remove its socket meanwhile
        assert list(temporary.glob("mmfw-*")) == []
        kill(started[-1])
        assert predictor.predict(images[4], "") == pytest.approx(0.4, abs=0.01)
    assert list(temporary.glob("mmfw-*")) == []


def test_ctrl_c_in_an_answer_leaves_none_for_the_next_request(
    model: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On Windows, the connection to the process is a named pipe.
    kind = getattr(connection, "PipeConnection", connection.Connection)
    with Predictor(model) as predictor:

        def pressed(*_: object) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(kind, "poll", pressed)
            with pytest.raises(KeyboardInterrupt):
                predictor.predict(images[1], "")
        assert [predictor.predict(path, "") for path in images[2:4]] == near(0.2, 0.3)


def test_a_process_ends_with_its_predictor_and_with_the_program(
    model: Path, temporary: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    predictor = Predictor(model)
    assert started[0].returncode is None
    del predictor
    gc.collect()
    assert started[0].returncode is not None
    code = f"from mmf_win import Predictor; predictor = Predictor({str(model)!r}); print('ready')"
    environ = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP"), str(temporary)), "PYTHONUTF8": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, encoding="utf-8")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ready\n", "")


def test_a_model_that_cannot_be_loaded_says_why(model: Path) -> None:
    (model / "model.onnx").write_bytes(b"")
    with pytest.raises(MmfEnvironmentError, match=r"model\.onnx: ") as raised:
        Predictor(model)
    _, told, output = str(raised.value.hint).partition("the end of its output:\n")
    assert told and "error: exported with onnxruntime" in output
    with pytest.raises(UsageError, match="batch_size=0"):
        Predictor(model, batch_size=0)


def answers(folder: Path, predict: Callable[[list[dict[str, Any]]], list[float]], *requests: Any) -> list[Any]:
    """Return the answers to requests of a connection; raise the error that ends it."""
    asked = AttemptRequest(PredictTask(""), "", "", attempt_dir=str(folder))
    with ThreadPoolExecutor(1) as pool:
        served, events, found = pool.submit(serve_predictions, asked, predict), EventReader(asked.events), []
        while not (told := list(events.poll())) and not served.done():
            time.sleep(0.01)
        with connection.Client(told[0]["address"]) as client, suppress(EOFError, OSError):
            for request in requests:
                client.send_bytes(json_bytes(request))
                found.append(json.loads(client.recv_bytes()))
    served.result()
    return found


def test_memes_that_are_too_many_at_once_are_predicted_one_by_one(temporary: Path) -> None:
    def predict(rows: list[dict[str, Any]]) -> list[float]:
        if len(rows) > 1:
            raise MemoryError
        if rows[0]["id"] == 3:
            raise TrainingError("the third", hint="leave it out")
        return [rows[0]["id"] / 10]

    rows = [{"id": number} for number in (1, 2, 3, 4)]
    found = answers(temporary, predict, rows[:2], rows)
    assert [each["probas"] for each in found] == [[0.1, 0.2], [0.1, 0.2]]
    assert [each["error"] for each in found] == [None, ["TrainingError", "the third", "leave it out"]]


def test_what_is_no_number_ends_an_answer_with_the_memes_before_it(temporary: Path) -> None:
    rows = [{"id": number} for number in (1, 2, 3)]
    [found] = answers(temporary, lambda _: [0.1, float("nan"), 0.3], rows)
    assert (found["probas"], found["error"][0]) == ([0.1], "DataError")


def test_an_unexpected_error_ends_the_process_that_answers(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        answers(temporary, lambda _: [1 / 0], [{"id": 1}])


def test_what_the_system_refuses_is_an_error_that_names_the_file(
    model: Path, images: list[Path], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Predictor(model) as predictor:
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "tempdir", str(temporary / "gone"))
            with pytest.raises(DataError, match="gone"):
                predictor.predict(images[0].read_bytes(), "")
            with pytest.raises(DataError, match="gone"):
                Predictor(model)
        assert [predictor.predict(images[1], "")] == near(0.1)
        with pytest.raises(FileNotFoundError):  # of the caller's own generator
            list(predictor.predict_many(_failing()))


def _failing() -> Iterator[tuple[Path, str]]:
    raise FileNotFoundError
    yield  # makes it a generator
