"""A model in half precision: its inputs and outputs, and the gradient scaler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
timing = LazyModule("mmf_win.worker.hooks.phase_timer")
precision = LazyModule("mmf_win.worker.hooks.precision")
resume_state = LazyModule("mmf_win.worker.hooks.resume_state")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def make_model(dtype: Any) -> Any:
    """Return a model that records the dtypes in which it computes."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)
            self.seen: list[Any] = []

        def forward(self, x: Any) -> Any:
            scores = self.layer(x)
            self.seen.append(scores.dtype)
            return {"scores": scores, "others": [scores, 3], "counts": torch.ones(2, dtype=torch.long)}

    precision.autocast_models(dtype, Model, "cpu")
    return Model()


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_model_computes_in_16_bits_and_returns_32_bits(name: str) -> None:
    dtype = getattr(torch, name)
    model = make_model(dtype)
    out = model(torch.randn(3, 4))
    assert model.seen == [dtype]
    assert out["scores"].dtype == out["others"][0].dtype == torch.float32
    assert out["counts"].dtype == torch.long and out["others"][1] == 3
    out["scores"].sum().backward()
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_replica_of_the_model_computes_in_16_bits_with_its_own_weights() -> None:
    """DataParallel replicates a model in this way: same class and attributes, other parameters."""
    model = make_model(torch.bfloat16)
    copy = model._replicate_for_data_parallel()
    copy.layer = torch.nn.Linear(4, 2)
    torch.nn.init.zeros_(copy.layer.weight)
    torch.nn.init.zeros_(copy.layer.bias)
    assert not copy(torch.randn(3, 4))["scores"].any()
    assert model.seen == [torch.bfloat16]


def test_scaler_is_restored_from_a_checkpoint_that_has_one() -> None:
    def make_trainer_state(*, fp16: bool) -> Any:
        """Return a fake trainer with a DataLoader of torch, and its state."""
        loaders = [torch.utils.data.DataLoader(list(range(4)))]
        train_loader = SimpleNamespace(loaders=loaders)
        scaler = precision.make_grad_scaler(torch.device("cpu"), enabled=fp16)
        trainer = SimpleNamespace(
            train_loader=train_loader, scaler=scaler, current_epoch=1, current_iteration=0, num_updates=0
        )
        return trainer, resume_state.ResumeState(trainer, timing.PhaseTimer())

    (first, first_state), (full, full_state), (second, second_state) = (
        make_trainer_state(fp16=True),
        make_trainer_state(fp16=False),
        make_trainer_state(fp16=True),
    )
    initial_scale = second.scaler.get_scale()
    first.scaler.load_state_dict(first.scaler.state_dict() | {"scale": 8.0})
    for trainer in (first, full, second):
        next(iter(trainer.train_loader.loaders[0].batch_sampler))
    assert second_state.load_state_dict(full_state.state_dict()) and second.scaler.get_scale() == initial_scale
    assert second_state.load_state_dict(first_state.state_dict()) and second.scaler.get_scale() == 8.0


def test_supported_precisions_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU data are fake: bf16 requires compute capability 8.0 (Ampere)."""
    assert precision.supports_precision("fp32", torch.device("cpu")) and not precision.supports_precision(
        "bf16", torch.device("meta")
    )
    for capability, is_supported in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, result=capability: result)
        assert precision.supports_precision("bf16", torch.device("cuda")) is is_supported
        assert precision.supports_precision("fp16", torch.device("cuda"))
    monkeypatch.setattr("torch.ops", SimpleNamespace())
    assert not precision.supports_precision("fp16", torch.device("cpu")), "torch without oneDNN"


@pytest.mark.parametrize(("instructions", "machine", "is_supported"), [(False, "x86_64", False), (True, "AMD64", True)])
def test_cpu_that_only_emulates_bf16_does_not_support_it(
    monkeypatch: pytest.MonkeyPatch, instructions: bool, machine: str, is_supported: bool
) -> None:
    """The answers of oneDNN and torch are fake: oneDNN also reports bf16 for plain AVX-512."""
    mkldnn = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: True)
    monkeypatch.setattr("torch.ops", SimpleNamespace(mkldnn=mkldnn))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert precision.supports_precision("bf16", torch.device("cpu")) is is_supported
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert precision.supports_precision("bf16", torch.device("cpu"))
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    assert precision.supports_precision("bf16", torch.device("cpu")), "older versions of torch lack this function"
