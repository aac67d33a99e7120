"""A model in half precision: what goes in and out, and the scaler of losses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
timing = LazyModule("mmf_win.worker.hooks.phase_timer")
precision = LazyModule("mmf_win.worker.hooks.precision")
resume = LazyModule("mmf_win.worker.hooks.resume_state")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def model_of(half: Any) -> Any:
    """One that notes what it calculates in."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)
            self.seen: list[Any] = []

        def forward(self, x: Any) -> Any:
            scores = self.layer(x)
            self.seen.append(scores.dtype)
            return {"scores": scores, "others": [scores, 3], "counts": torch.ones(2, dtype=torch.long)}

    precision.autocast_models(half, Model, "cpu")
    return Model()


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_model_calculates_in_half_and_gives_whole_numbers(name: str) -> None:
    half = getattr(torch, name)
    model = model_of(half)
    out = model(torch.randn(3, 4))
    assert model.seen == [half]
    assert out["scores"].dtype == out["others"][0].dtype == torch.float32
    assert out["counts"].dtype == torch.long and out["others"][1] == 3
    out["scores"].sum().backward()
    assert (
        {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}
    )


def test_a_copy_of_the_model_calculates_in_half_with_its_own_weights() -> None:
    """As DataParallel copies it: the class and its attributes, with other parameters."""
    model = model_of(torch.bfloat16)
    copy = model._replicate_for_data_parallel()
    copy.layer = torch.nn.Linear(4, 2)
    torch.nn.init.zeros_(copy.layer.weight)
    torch.nn.init.zeros_(copy.layer.bias)
    assert not copy(torch.randn(3, 4))["scores"].any()
    assert model.seen == [torch.bfloat16]


def test_a_scaler_goes_on_where_another_ended_and_begins_anew_without_one() -> None:
    def run(*, fp16: bool) -> Any:
        """A fake trainer that has a loader of torch's."""
        loaders = [torch.utils.data.DataLoader(list(range(4)))]
        loaded = SimpleNamespace(loaders=loaders)
        made = precision.make_grad_scaler(torch.device("cpu"), enabled=fp16)
        trainer = SimpleNamespace(
            train_loader=loaded, scaler=made, current_epoch=1, current_iteration=0, num_updates=0
        )
        return trainer, resume.ResumeState(trainer, timing.PhaseTimer())

    (first, of_first), (full, of_full), (second, of_second) = run(fp16=True), run(fp16=False), run(fp16=True)
    fresh = second.scaler.get_scale()
    first.scaler.load_state_dict(first.scaler.state_dict() | {"scale": 8.0})
    for each in (first, full, second):
        next(iter(each.train_loader.loaders[0].batch_sampler))
    assert of_second.load_state_dict(of_full.state_dict()) and second.scaler.get_scale() == fresh
    assert of_second.load_state_dict(of_first.state_dict()) and second.scaler.get_scale() == 8.0


def test_what_a_device_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of NVIDIA's GPUs are made up here: bf16 came with Ampere, 8.0."""
    assert precision.supports_precision("fp32", torch.device("cpu")) and not precision.supports_precision(
        "bf16", torch.device("meta")
    )
    for capability, half in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, of=capability: of)
        assert precision.supports_precision("bf16", torch.device("cuda")) is half
        assert precision.supports_precision("fp16", torch.device("cuda"))
    monkeypatch.setattr("torch.ops", SimpleNamespace())
    assert not precision.supports_precision("fp16", torch.device("cpu")), "a torch without oneDNN"


@pytest.mark.parametrize(
    ("instructions", "machine", "half"), [(False, "x86_64", False), (True, "AMD64", True)]
)
def test_a_processor_that_only_emulates_bf16_does_not_have_it(
    monkeypatch: pytest.MonkeyPatch, instructions: bool, machine: str, half: bool
) -> None:
    """What oneDNN and torch say of one is made up here: AVX-512 alone is enough for oneDNN to say yes."""
    says = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: True)
    monkeypatch.setattr("torch.ops", SimpleNamespace(mkldnn=says))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert precision.supports_precision("bf16", torch.device("cpu")) is half
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert precision.supports_precision("bf16", torch.device("cpu"))
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    assert precision.supports_precision("bf16", torch.device("cpu")), "an older torch does not tell"
