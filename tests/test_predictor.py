"""Predictors and their model processes, which load a small ONNX model without torch."""

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

WHITE = 255  # the grey value of an image for which the model fails


@pytest.fixture(autouse=True)
def temp_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of temporary files, which must be empty at the end; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="мем ") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        gc.collect()
        assert list(Path(folder).glob("mmfw*")) == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a folder like ``mmfw export``, whose model predicts the mean grey value of an image."""
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
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (folder / "model.onnx").write_bytes(onnx_model.SerializeToString())
    metadata = {"run": "greys/1", "inputs": [{"name": "image", "dtype": "uint8"}], "image": True}
    metadata |= {"text": None, "features": None, "versions": {"onnxruntime": "1"}}
    (folder / "model.json").write_text(json.dumps(metadata), encoding="utf-8")
    return folder


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Write images with increasing grey values, for which the model predicts 0, 0.1, 0.2 …"""
    paths = [tmp_path / f"grey {number}.png" for number in range(10)]
    for number, path in enumerate(paths):
        PIL.new("RGB", (8, 8), (round(25.5 * number),) * 3).save(path)
    return paths


def approx_probas(*probas: float) -> Any:
    return pytest.approx(list(probas), abs=0.01)


@pytest.fixture
def model_processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Record the model processes that predictors start, the newest last."""
    processes: list[subprocess.Popen[bytes]] = []

    class WatchedTree(ProcessTree):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self.process)

    monkeypatch.setattr("mmf_win.runs.model_process.ProcessTree", WatchedTree)
    return processes


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a model process."""
    if sys.platform == "win32":
        os.kill(process.pid, signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGKILL)


def test_package_imports_no_slow_modules() -> None:
    code = "import sys, mmf_win; print(*{'torch', 'numpy', 'multiprocessing'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    assert output.split() == []
    assert "Predictor" in dir(mmf_win)
    with pytest.raises(AttributeError, match="no attribute 'predictors'"):
        mmf_win.predictors  # noqa: B018


def test_memes_are_read_lazily_and_predicted_in_order_and_in_threads(model: Path, images: list[Path]) -> None:
    read_numbers: list[int] = []

    def pairs() -> Iterator[tuple[Path, str]]:
        for number, path in enumerate(images):
            read_numbers.append(number)
            yield path, "text"

    with Predictor(model, batch_size=4) as predictor:
        predictions = predictor.predict_many(pairs())
        assert read_numbers == []
        first = next(predictions)
        assert read_numbers == [0, 1, 2, 3]
        assert [first, *predictions] == approx_probas(*(number / 10 for number in range(10)))
        assert list(predictor.predict_many([])) == []
        with ThreadPoolExecutor(4) as pool:
            threaded_predictions = list(pool.map(lambda path: predictor.predict(path, "text"), 5 * images))
        assert threaded_predictions == 5 * [predictor.predict(path, "text") for path in images]


def test_image_may_be_a_path_file_content_or_pillow_image(
    model: Path, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = images[5].read_bytes()
    with Predictor(str(model)) as predictor:
        sources: list[Any] = [images[5], str(images[5]), images[5].name, content, bytearray(content)]
        assert list(predictor.predict_many((source, "") for source in sources)) == approx_probas(*5 * [0.5])
        palette = PIL.new("P", (4, 4), 1)
        palette.putpalette([0, 0, 0, 10, 90, 110])
        rgba = PIL.new("RGBA", (3, 5), (10, 200, 30, 40))
        for image in (palette, rgba, rgba.convert("LA"), rgba.convert("CMYK"), rgba.convert("I")):
            image.save(tmp_path / "same.tiff")
            assert predictor.predict(image, "") == predictor.predict(tmp_path / "same.tiff", "")


def test_invalid_meme_is_named_after_earlier_predictions_and_process_continues(
    model: Path, images: list[Path], tmp_path: Path, temp_folder: Path, model_processes: list[subprocess.Popen[bytes]]
) -> None:
    truncated = tmp_path / "cut 梗.png"
    PIL.effect_noise((64, 64), 50).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:900])
    opened = PIL.open(truncated)
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (truncated, "", UnreadableImageError, f"{truncated}: "),
        (truncated.read_bytes(), "", UnreadableImageError, "the image: "),
        (b"", "", UnreadableImageError, "the image: cannot identify image file 'the image'"),
        (opened, "", UnreadableImageError, "the image: image cannot be read ("),
        (tmp_path / "none.png", "", DatasetError, f"{tmp_path / 'none.png'}: image not found"),
        (tmp_path, "", DatasetError, f"{tmp_path}: image not found"),
        (5, "", UsageError, "the image has the unsupported type int"),
        (images[0], None, UsageError, "None: not a text"),
        (images[0], "\ud83d", UsageError, r"'\ud83d': not a text"),
    ]
    with Predictor(model) as predictor:
        for image, text, error_type, message in cases:
            with pytest.raises(error_type) as raised:
                predictor.predict(image, text)
            assert type(raised.value) is error_type and str(raised.value).startswith(message)
            assert str(temp_folder) not in str(raised.value) and "\n" not in str(raised.value)
            predictions = predictor.predict_many([(images[1], ""), (images[2], ""), (image, text), (images[3], "")])
            assert [next(predictions), next(predictions)] == approx_probas(0.1, 0.2)
            with pytest.raises(error_type):
                next(predictions)
        opened.close()
        assert predictor.predict(images[9], "") == pytest.approx(0.9, abs=0.01)
        assert len(model_processes) == 1
    predictor.close()
    for request in (lambda: predictor.predict(images[0], ""), lambda: next(predictor.predict_many([(b"", "")]))):
        with pytest.raises(UsageError, match="this predictor is closed"):
            request()


def test_model_process_that_dies_is_restarted_once_per_request(
    model: Path, images: list[Path], model_processes: list[subprocess.Popen[bytes]]
) -> None:
    with Predictor(model) as predictor:
        kill_process(model_processes[-1])
        assert predictor.predict(images[4], "") == pytest.approx(0.4, abs=0.01)
        assert len(model_processes) == 2
        with pytest.raises(TrainingError, match="the model process died twice on this request: ") as raised:
            predictor.predict(PIL.new("RGB", (8, 8), "white"), "")
        assert "the end of its output:" in str(raised.value.hint)
        assert predictor.predict(images[4], "") == pytest.approx(0.4, abs=0.01), "the next request must restart it"


def test_failing_iterable_and_invalid_pairs_raise_errors(model: Path, images: list[Path]) -> None:
    def pairs() -> Iterator[tuple[Path, str]]:
        yield images[2], ""
        raise LookupError("error of the caller")

    with Predictor(model, batch_size=4) as predictor:
        predictions = predictor.predict_many(pairs())
        assert next(predictions) == pytest.approx(0.2, abs=0.01)
        with pytest.raises(LookupError, match="error of the caller"):
            next(predictions)
        for invalid in ((images[1],), images[1], "ab", None):
            with pytest.raises(UsageError, match="not a pair of an image and a text"):
                list(predictor.predict_many([invalid]))  # type: ignore[list-item]
        with pytest.raises(DatasetError, match="image not found"):
            predictor.predict("x" * 5000, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_predictor_refuses_forked_process_and_continues_in_parent(model: Path, images: list[Path]) -> None:
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
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    assert float(process.stdout) == pytest.approx(0.3, abs=0.01) and process.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot remove open files")
def test_predictor_works_after_its_temporary_files_were_deleted(
    model: Path, images: list[Path], temp_folder: Path, model_processes: list[subprocess.Popen[bytes]]
) -> None:
    with Predictor(model) as predictor:
        for folder in temp_folder.glob("mmfw-*"):
            shutil.rmtree(folder, ignore_errors=True)  # the process may remove its socket at the same time
        assert list(temp_folder.glob("mmfw-*")) == []
        kill_process(model_processes[-1])
        assert predictor.predict(images[4], "") == pytest.approx(0.4, abs=0.01)
    assert list(temp_folder.glob("mmfw-*")) == []


def test_response_interrupted_by_ctrl_c_is_not_returned_to_next_request(
    model: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On Windows, the connection to the process is a named pipe.
    connection_type = getattr(connection, "PipeConnection", connection.Connection)
    with Predictor(model) as predictor:

        def interrupt(*_: object) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(connection_type, "poll", interrupt)
            with pytest.raises(KeyboardInterrupt):
                predictor.predict(images[1], "")
        assert [predictor.predict(path, "") for path in images[2:4]] == approx_probas(0.2, 0.3)


def test_model_process_ends_with_its_predictor_and_with_the_program(
    model: Path, temp_folder: Path, model_processes: list[subprocess.Popen[bytes]]
) -> None:
    predictor = Predictor(model)
    assert model_processes[0].returncode is None
    del predictor
    gc.collect()
    assert model_processes[0].returncode is not None
    code = f"from mmf_win import Predictor; predictor = Predictor({str(model)!r}); print('ready')"
    environ = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP"), str(temp_folder)), "PYTHONUTF8": "1"}
    process = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, encoding="utf-8")
    assert (process.returncode, process.stdout, process.stderr) == (0, "ready\n", "")


def test_error_of_unloadable_model_has_the_cause(model: Path) -> None:
    (model / "model.onnx").write_bytes(b"")
    with pytest.raises(MmfEnvironmentError, match=r"model\.onnx: ") as raised:
        Predictor(model)
    _, separator, output = str(raised.value.hint).partition("the end of its output:\n")
    assert separator and "error: exported with onnxruntime" in output
    with pytest.raises(UsageError, match="batch_size=0"):
        Predictor(model, batch_size=0)


def serve_requests(folder: Path, predict: Callable[[list[dict[str, Any]]], list[float]], *requests: Any) -> list[Any]:
    """Send requests to serve_predictions and return its responses; raise the error that ends it."""
    attempt = AttemptRequest(PredictTask(""), "", "", attempt_dir=str(folder))
    with ThreadPoolExecutor(1) as pool:
        server, events, responses = pool.submit(serve_predictions, attempt, predict), EventReader(attempt.events), []
        while not (new_events := list(events.poll())) and not server.done():
            time.sleep(0.01)
        with connection.Client(new_events[0]["address"]) as client, suppress(EOFError, OSError):
            for request in requests:
                client.send_bytes(json_bytes(request))
                responses.append(json.loads(client.recv_bytes()))
    server.result()
    return responses


def test_memes_are_predicted_one_by_one_if_memory_runs_out(temp_folder: Path) -> None:
    def predict(rows: list[dict[str, Any]]) -> list[float]:
        if len(rows) > 1:
            raise MemoryError
        if rows[0]["id"] == 3:
            raise TrainingError("the third", hint="leave it out")
        return [rows[0]["id"] / 10]

    rows = [{"id": number} for number in (1, 2, 3, 4)]
    responses = serve_requests(temp_folder, predict, rows[:2], rows)
    assert [response["probas"] for response in responses] == [[0.1, 0.2], [0.1, 0.2]]
    assert [response["error"] for response in responses] == [None, ["TrainingError", "the third", "leave it out"]]


def test_nan_ends_a_response_after_the_earlier_memes(temp_folder: Path) -> None:
    rows = [{"id": number} for number in (1, 2, 3)]
    [response] = serve_requests(temp_folder, lambda _: [0.1, float("nan"), 0.3], rows)
    assert (response["probas"], response["error"][0]) == ([0.1], "DataError")


def test_unexpected_error_ends_the_model_process(temp_folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        serve_requests(temp_folder, lambda _: [1 / 0], [{"id": 1}])


def test_error_of_the_file_system_names_the_file(
    model: Path, images: list[Path], temp_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Predictor(model) as predictor:
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "tempdir", str(temp_folder / "gone"))
            with pytest.raises(DataError, match="gone"):
                predictor.predict(images[0].read_bytes(), "")
            with pytest.raises(DataError, match="gone"):
                Predictor(model)
        assert [predictor.predict(images[1], "")] == approx_probas(0.1)
        with pytest.raises(FileNotFoundError):  # raised by the caller's generator
            list(predictor.predict_many(_failing_pairs()))


def _failing_pairs() -> Iterator[tuple[Path, str]]:
    raise FileNotFoundError
    yield  # makes the function a generator
