"""A user_dir for MMF that makes a run fail where a test wants it to; it also has the small ResNet.

The environment variable ``MMFW_TEST_FAULTS`` holds a JSON list of faults, each an object::

    at      forward, backward      of a training batch (or of a part of one)
            validation             a layer of a model that is not in training, in a prediction, too
            step, stepped          before and after the optimizer's step
            loader                 a DataLoader is made
            loader_worker          one of its workers starts, in the worker's own process
            fetch                  one of its workers makes the batch after ``above`` others
            writing                a checkpoint has its bytes, but not its name
            saved                  MMF's Checkpoint.save is done
            ending                 all is done, and the outcome is about to be written
            exporting              torch makes a graph of the model
            meter                  a fake one says that the memory holds as many rows as ``above``
            hardware               it seems to calculate in half precision, or not
    do      wait                   makes the file ``once`` and goes on when there is one of that name and .go
            wait_to_be_stopped     makes ``once`` and goes on when the worker knows that it is to stop
            connect                holds a connection to ``port`` until the process is dead
            linger                 starts a thread that keeps the process from ending
            cuda_oom               raises torch's own OutOfMemoryError
            allocate               takes ``bytes`` of the GPU for each row, until the next batch
            memory_error           raises MemoryError
            kill                   kill -9 of the own process
            wait_and_kill          wait, then kill
            nan                    makes the losses NaN (at forward)
            truncate               cuts off current.ckpt
            limit_files            lets no file get longer than ``bytes``, as ``ulimit -f`` does
            fill_disk              writes to ``file`` until its disk is full
            stop                   a signal that asks the run to stop, which it does after this update
            half, no_half          (at hardware)
            hang                   never returns; hang_in_c does so holding the GIL

and, where given, conditions that must all hold::

    above   more rows than this (at loader, loader_worker: more workers than this)
    rank    only on this one of several ranks
    update  the update that is being made, from 1, also in a run that went on; at writing and saved, the last
    once    a path; the fault makes this file, and never strikes again
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

import small_resnet  # noqa: F401 - beside this package; MMF puts their folder on sys.path
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
    """Do what is asked for at this point."""
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
    [stop] = [each for each in gc.get_objects() if isinstance(each, StopSignal)]
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
    current.unlink()  # it may share its bytes with other names
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
    """Sees what reaches the layers, which may be less than what the model was called with."""
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
    """Strike while a checkpoint that was just written is read back, before it gets its name."""
    if path.suffix == ".part":
        trigger_faults("writing")
    found: str | None = _original(path, *args)
    return found


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
    """Let the CPU be a GPU that has room for so many rows: the weights take 1000 bytes, and each row 100."""
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
