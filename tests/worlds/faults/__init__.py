"""User_dir for MMF that injects faults into a run; it also contains the small ResNet.

The environment variable ``MMFW_TEST_FAULTS`` holds a JSON list of faults. Each fault is an object::

    at      forward, backward      forward or backward pass of a training micro-batch
            validation             layer of a model in evaluation mode, also in predictions
            step, stepped          before and after the optimizer's step
            loader                 creation of a DataLoader
            loader_worker          start of a DataLoader worker, in its process
            fetch                  a DataLoader worker builds a batch; ``above`` is compared with the earlier batches
            writing                the bytes of a checkpoint are written, but it has a temporary name
            saved                  MMF's Checkpoint.save has returned
            ending                 the work is done and the outcome is about to be written
            exporting              torch creates a graph of the model
            meter                  at import: a fake memory meter with room for ``above`` rows
            hardware               at import: the device has or lacks fast half precision (``do``)
    do      wait                   creates the file ``once`` and waits until ``once`` + ".go" exists
            wait_to_be_stopped     creates ``once`` and waits until the worker has noticed a stop request
            connect                keeps a connection to ``port`` open until the process is dead
            linger                 starts a thread that prevents the process from exiting
            cuda_oom               raises torch's OutOfMemoryError
            allocate               allocates ``bytes`` on the GPU for each row, until the next batch
            memory_error           raises MemoryError
            kill                   kills the current process with SIGKILL
            wait_and_kill          wait, then kill
            nan                    makes the losses NaN (at forward)
            truncate               truncates current.ckpt
            limit_files            limits files to ``bytes``, as ``ulimit -f`` does
            fill_disk              writes to ``file`` until its disk is full
            stop                   sends a signal that requests the run to stop after this update
            half, no_half          (at hardware)
            hang                   never returns; hang_in_c holds the GIL in addition

Optional conditions, which must all hold::

    above   more rows than this (at loader and loader_worker: more workers than this)
    rank    only on this rank
    update  the current update, counted from 1 including those before a resume; at writing and saved, the last update
    once    a path; the fault creates this file and is not triggered if it exists
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import small_resnet  # noqa: F401 - next to this package; MMF adds their folder to sys.path
import torch
from mmf.models.base_model import BaseModel
from mmf.utils.checkpoint import Checkpoint
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from mmf_win.integrity import torch_file
from mmf_win.protocol import AttemptOutcome
from mmf_win.worker.hooks import micro_batch, precision
from mmf_win.worker.hooks.ranks import get_rank
from mmf_win.worker.stop_signal import StopSignal

_FAULTS: list[dict[str, Any]] = json.loads(os.environ.get("MMFW_TEST_FAULTS", "[]"))
_state = {"rows": 0, "update": 1, "batches": 0}
_connections: list[socket.socket] = []
_memory: list[torch.Tensor] = []


def trigger_faults(point: str, rows: int = 0, folder: str = "", model: Any = None, output: Any = None) -> None:
    """Trigger the faults for this point whose conditions hold."""
    update = _state["update"] - (point in ("writing", "saved"))
    for fault in _FAULTS:
        if fault["at"] != point or rows <= fault.get("above", -1) or fault.get("update", update) != update:
            continue
        if "rank" in fault and fault["rank"] != get_rank():
            continue
        if "once" in fault:
            if Path(fault["once"]).exists():
                continue
            Path(fault["once"]).touch()
        _ACTIONS[fault["do"]](fault, folder, model, output)


def _wait(fault: Any, *_: Any) -> None:
    while not Path(fault["once"] + ".go").exists():
        time.sleep(0.01)


def _wait_to_be_stopped(*_: Any) -> None:
    [stop] = [instance for instance in gc.get_objects() if isinstance(instance, StopSignal)]
    while not stop.has_noticed_request:
        time.sleep(0.01)


def _connect(fault: Any, *_: Any) -> None:
    _connections.append(socket.create_connection(("127.0.0.1", fault["port"])))


def _linger(*_: Any) -> None:
    threading.Thread(target=_hang).start()


def _cuda_oom(*_: Any) -> None:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (a test's fault)")


def _allocate(fault: Any, *_: Any) -> None:
    _memory.clear()
    _memory.append(torch.empty(fault["bytes"] * _state["rows"], dtype=torch.uint8, device="cuda"))


def _memory_error(*_: Any) -> None:
    raise MemoryError


def _kill(*_: Any) -> None:
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def _wait_and_kill(*arguments: Any) -> None:
    _wait(*arguments)
    _kill()


def _nan(_fault: Any, _folder: str, _model: Any, output: Any) -> None:
    output["losses"] = {key: loss * float("nan") for key, loss in output["losses"].items()}


def _truncate(_fault: Any, folder: str, *_: Any) -> None:
    current = Path(folder, "current.ckpt")
    content = current.read_bytes()
    current.unlink()  # it may be a hard link to another checkpoint
    current.write_bytes(content[: len(content) // 2])


def _limit_files(fault: Any, *_: Any) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (fault["bytes"], hard))


def _fill_disk(fault: Any, *_: Any) -> None:
    with suppress(OSError), Path(fault["file"]).open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


def _stop(*_: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def _hang(*_: Any) -> None:
    threading.Event().wait()


def _hang_in_c(*_: Any) -> None:
    library = ctypes.PyDLL(None if sys.platform != "win32" else "msvcrt")
    while True:  # PyDLL keeps the GIL during the call
        library.sleep(1000) if sys.platform != "win32" else library._sleep(1000_000)


_ACTIONS = {
    action.__name__[1:]: action
    for action in (
        *(_wait, _connect, _linger, _cuda_oom, _allocate, _memory_error, _kill, _nan, _truncate),
        *(_wait_to_be_stopped, _limit_files, _fill_disk, _stop, _hang, _hang_in_c, _wait_and_kill),
    )
}


def _forward(self: Any, samples: Any, *args: Any, _original: Any = BaseModel.__call__, **kwargs: Any) -> Any:
    rows = _state["rows"] = samples.get_batch_size()
    output = _original(self, samples, *args, **kwargs)
    if self.training:
        trigger_faults("forward", rows, model=self, output=output)
    return output


def _before_layer(layer: torch.nn.Module, inputs: Any) -> None:
    """Trigger validation faults with the rows of a layer, which may be fewer than the rows of the model."""
    if isinstance(layer, torch.nn.Linear) and not layer.training:
        trigger_faults("validation", len(inputs[0]))


def _backward(self: Any, *args: Any, _original: Any = torch.Tensor.backward, **kwargs: Any) -> None:
    trigger_faults("backward", _state["rows"])
    _original(self, *args, **kwargs)


def _after_step(*_: Any) -> None:
    trigger_faults("stepped", _state["rows"])
    _state["update"] += 1


def _load(self: Any, *args: Any, _original: Any = Checkpoint.load_state_dict) -> None:
    _original(self, *args)
    _state["update"] = self.trainer.num_updates + 1


def _save(self: Any, *args: Any, _original: Any = Checkpoint.save, **kwargs: Any) -> None:
    _original(self, *args, **kwargs)
    trigger_faults("saved", folder=self.ckpt_foldername, model=self.trainer.model)


def _read_back(path: Path, *args: Any, _original: Any = torch_file.find_problem) -> str | None:
    """Trigger writing faults while a new checkpoint is read back, before it gets its final name."""
    if path.suffix == ".part":
        trigger_faults("writing")
    problem: str | None = _original(path, *args)
    return problem


def _export(*args: Any, _original: Any = torch.onnx.export, **kwargs: Any) -> Any:
    trigger_faults("exporting")
    return _original(*args, **kwargs)


def _record_outcome(self: AttemptOutcome, *args: Any, _original: Any = AttemptOutcome.record) -> None:
    trigger_faults("ending")
    _original(self, *args)


def _init_loader_worker(_number: int) -> None:
    trigger_faults("loader_worker", torch.utils.data.get_worker_info().num_workers)


def _fetch(self: Any, *args: Any, _original: Any = _MapDatasetFetcher.fetch) -> Any:
    if torch.utils.data.get_worker_info():
        trigger_faults("fetch", _state["batches"])
        _state["batches"] += 1
    return _original(self, *args)


def _init_loader(self: Any, *args: Any, _original: Any = torch.utils.data.DataLoader.__init__, **kwargs: Any) -> None:
    workers = kwargs.get("num_workers", 0)
    trigger_faults("loader", workers)
    if any(fault["at"] == "loader_worker" for fault in _FAULTS):
        kwargs["worker_init_fn"] = _init_loader_worker
    _original(self, *args, **kwargs)


def _fake_memory(rows: int) -> None:
    """Make the CPU look like a GPU with memory for ``rows`` rows; weights take 1000 bytes and each row takes 100."""
    micro_batch.MEASURABLE_DEVICES = {"cpu"}
    torch.cuda.reset_peak_memory_stats = lambda *_: None
    torch.cuda.max_memory_allocated = lambda *_: 1000 + 100 * _state["rows"]
    torch.cuda.mem_get_info = lambda *_: (math.ceil((1000 + 100 * rows) / 0.9), 0)
    torch.cuda.memory_reserved = lambda *_: 0


for _fault in _FAULTS:
    if _fault["at"] == "meter":
        _fake_memory(_fault["above"])
    if _fault["at"] == "hardware":
        precision.supports_precision = lambda name, _device, do=_fault["do"]: name == "fp32" or do == "half"  # type: ignore[misc]

if _FAULTS:
    BaseModel.__call__ = _forward
    register_module_forward_pre_hook(_before_layer)
    torch.Tensor.backward = _backward  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(lambda *_: trigger_faults("step", _state["rows"]))
    register_optimizer_step_post_hook(_after_step)
    _MapDatasetFetcher.fetch = _fetch  # type: ignore[method-assign]
    Checkpoint.load_state_dict = _load
    Checkpoint.save = _save
    torch.onnx.export = _export
    AttemptOutcome.record = _record_outcome  # type: ignore[method-assign]
    torch_file.find_problem = _read_back
    torch.utils.data.DataLoader.__init__ = _init_loader  # type: ignore[method-assign]
