"""What a minute finds in a model and its rows before training; docs/checking.md explains each check.

Every check yields what it found; weights, optimizer and random state are put back after the last one.
"""

from __future__ import annotations

import copy
import math
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NoReturn

import torch
from torch import nn

from mmf_win.console import first_few
from mmf_win.protocol import Remark, Verdict
from mmf_win.worker.hooks import splitting
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.resume import random_state, set_random_state
from mmf_win.worker.outcome import Checked, StopRequested

_LIMIT = 60.0  # seconds that a check may take
_BATCHES = 8  # in which both labels are looked for
_ROWS = 8  # that have to be learnt
_STEPS = 40
_OWN_RATES = (1e-3, 1e-2)
_LEARNT = 0.2  # the loss; softmax before cross-entropy ends at 0.3133, ln(1 + 1/e)
_SAME = 5e-3  # of the largest score: batches of other sizes are calculated by other kernels
_MANY = 0.1  # the share of texts that are cut, or of tokens that are not known
_TEXT = re.compile(r"text|input_|segment|lm_label|tokens|length")
_IMAGE = re.compile(r"image|img|bbox|cls_prob|obj_")
# A head whose two scores differ by d at random has a mean loss of about ln 2 + E[d²]/8: 1.5 means |d| ≈ 2.5
# of unscaled inputs, and 0.2 that it knows the labels. Rows that train have one of the two by chance.
_FRESH = (0.2, 1.5)
# MMF's own: the model whose tensors these are is trained without them.
_NEVER_TRAINED = {"vilbert": re.compile(r"\.biOutput\.q_dense[12]\.")}


class Subject:
    """What is checked: a model with the parts of its trainer, and the first rows with both labels.

    Attributes:
        seconds: what a forward pass of all rows takes.
    """

    def __init__(self, trainer: Any, limit: int, *, fresh: bool) -> None:
        self.model, self.optimizer, self.fresh = trainer.model, trainer.optimizer, fresh
        self.name, self.seconds = str(trainer.config.model), 0.0
        loaders = trainer.train_loader.loaders
        self.dataset = next(iter(loaders.values() if isinstance(loaders, Mapping) else loaders)).dataset
        for _, batch in zip(range(_BATCHES), trainer.train_loader, strict=False):
            if len(set(batch["targets"].tolist())) > 1:
                break
        self.batch = splitting.split(batch, limit)[0][1].to(trainer.device)
        self.rows: int = self.batch.get_batch_size()
        self.ids = [str(int(each)) for each in self.batch["id"]]

    def says(self, verdict: Verdict, text: str, advice: str | None = None) -> Remark:
        """A remark on these rows; whoever runs the check names it."""
        return Remark(verdict, "", text, advice, self.ids)

    def output(self, batch: Any, *, seed: int = 0) -> Mapping[str, Any]:
        """What the model makes of a batch, to which it may add; chance is the same for the same seed."""
        torch.manual_seed(seed)
        begun = time.monotonic()
        output: Mapping[str, Any] = self.model(splitting.rows_of(batch, slice(None), batch.get_batch_size()))
        self.seconds = time.monotonic() - begun
        return output

    def scores(self, batch: Any, *, train: bool = False, seed: int = 0) -> torch.Tensor:
        """Those of a batch; ``train`` normalizes by its rows, without dropout."""
        without_chance(self.model) if train else self.model.eval()
        with torch.no_grad():
            return torch.as_tensor(self.output(batch, seed=seed)["scores"]).float().cpu()


def run(observer: Observer, trainer: Any, limit: int) -> NoReturn:
    """Write an event for whatever the checks find in at most ``limit`` rows, and end the attempt."""
    subject = Subject(trainer, limit, fresh=is_fresh(trainer.model, observer.copied))
    with as_before(subject.model, subject.optimizer):
        for name, (check, passes) in CHECKS.items():
            begun, failed = time.monotonic(), False
            try:
                if passes * subject.seconds > _LIMIT:
                    text = f"skipped: about {passes * subject.seconds:.0f} s here"
                    found = [subject.says("note", text, "fewer rows take less: --batch-size")]
                else:
                    found = list(check(subject))
            except (StopRequested, torch.cuda.OutOfMemoryError):
                raise
            except Exception as error:
                traceback.print_exc()
                text, failed = f"{type(error).__name__}: {' '.join(str(error).split())}", True
                found = [subject.says("error", text, "training fails likewise")]
            seconds = round(time.monotonic() - begun, 2)
            for each in found:
                observer.event("checked", **asdict(replace(each, check=name, seconds=seconds)))
            if failed:
                break
            observer.heartbeat()
    raise Checked


@contextmanager
def as_before(model: nn.Module, optimizer: Any) -> Iterator[None]:
    """Put weights, buffers, modes, the optimizer's state and chance back in the end; gradients are gone."""
    tensors = [*model.parameters(), *model.buffers()]
    weights = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    modes = {module: module.training for module in model.modules()}
    state, chance = copy.deepcopy(optimizer.state_dict()), random_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in zip(tensors, weights, strict=True):
                tensor.copy_(before)
        for module, mode in modes.items():
            module.training = mode
        optimizer.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        set_random_state(chance)


def without_chance(model: nn.Module) -> None:
    """Let the model train without dropout."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()


def is_fresh(model: nn.Module, copied: Iterable[str]) -> bool:
    """Whether the head, by its bias of two numbers, is none that a file has set, but random."""
    heads = {name for name, parameter in model.named_parameters() if parameter.shape == (2,)}
    return bool(heads) and heads.isdisjoint(copied)


def odd_first_loss(losses: Mapping[str, torch.Tensor]) -> str | None:
    """What is odd about the first loss of a fresh head, which is about ln 2 where it guesses."""
    value = _total(losses).item()
    if len(losses) != 1 or "cross_entropy" not in next(iter(losses)) or _FRESH[0] <= value <= _FRESH[1]:
        return None
    why = "the model sees the label" if value < _FRESH[0] else "the scores are too large: look at their scale"
    return f"the first loss is {value:.2f}; a head that knows nothing has about 0.69 (ln 2): {why}"


def _total(losses: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack([loss.float().mean() for loss in losses.values()]).sum()


def _scores(of: Subject) -> Iterator[Remark]:
    without_chance(of.model)
    with torch.no_grad():
        output, targets = of.output(of.batch), of.batch["targets"]
    scores, losses = output.get("scores"), output.get("losses")
    if not torch.is_tensor(scores) or not losses:
        yield of.says("error", "the model returns no scores or no losses", "MMF trains and scores with both")
        return
    if (shape := tuple(scores.shape)) != (of.rows, 2):
        text = f"scores have the shape {shape}, and {of.rows} rows need ({of.rows}, 2)"
        yield of.says("error", text, "metrics and predictions take the second of two scores as hateful")
        return
    if targets.dtype != torch.long or targets.shape != (of.rows,) or not set(targets.tolist()) <= {0, 1}:
        text = f"targets are {targets.dtype} of the shape {tuple(targets.shape)}"
        yield of.says("error", text, "cross-entropy takes a whole number, 0 or 1, for each row")
        return
    if not torch.isfinite(scores).all() or not torch.isfinite(_total(losses)):
        yield of.says("error", "scores or losses are not finite", "look for a division by 0 or a log of 0")
        return
    sums = scores.float().sum(1)
    is_cross_entropy = any("cross_entropy" in name for name in losses)
    if is_cross_entropy and scores.min() >= 0 and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        text = "each row of scores sums to 1: a softmax comes before cross-entropy, which has its own"
        yield of.says("error", text, "return the logits; with both, the loss stays above 0.3133")
        return
    if of.fresh and (text := odd_first_loss(losses) or ""):
        yield of.says("warning", text, "MMF's models begin between 0.6 and 0.9")
        return
    yield of.says("ok", f"two scores a row, first loss {_total(losses).item():.2f}")


def _parameters(of: Subject) -> Iterator[Remark]:
    without_chance(of.model)
    of.model.zero_grad(set_to_none=True)
    _total(of.output(of.batch)["losses"]).backward()  # type: ignore[no-untyped-call]
    given = {id(parameter) for group in of.optimizer.param_groups for parameter in group["params"]}
    named = dict(of.model.named_parameters())
    frozen = [name for name, each in named.items() if not each.requires_grad]
    untrained = [name for name, each in named.items() if each.requires_grad and each.grad is None]
    outside = [n for n, each in named.items() if each.grad is not None and id(each) not in given]
    known = _NEVER_TRAINED.get(of.name, re.compile(r"\Z."))
    own = [name for name in untrained if known.search(name)]
    kinds: tuple[tuple[Verdict, list[str], str, str], ...] = (
        (
            "warning",
            [name for name in untrained if name not in own],
            "get no gradient",
            "the loss does not depend on them: look for a detach, or for a part that forward never uses",
        ),
        ("warning", outside, "are not given to the optimizer", "see get_optimizer_parameters of the model"),
        ("note", own, "get no gradient", "MMF's own: this model never uses them"),
        ("note", frozen, "are frozen", "they keep their values, as the configuration or the code says"),
    )
    for verdict, names, what, advice in kinds:
        if names:
            yield of.says(verdict, f"{len(names)} of {len(named)} tensors {what}: {first_few(names)}", advice)
    if not (outside or untrained):
        yield of.says("ok", f"{len(named) - len(frozen)} tensors get a gradient and are optimized")


def _rows_apart(of: Subject) -> Iterator[Remark]:
    if of.rows < 2:
        yield of.says("note", "skipped: the batch has one row", "--batch-size 2 has two")
        return
    scores = of.scores(of.batch)
    limit = _SAME * max(1.0, scores.abs().max().item())
    part = of.scores(splitting.split(of.batch, of.rows - 1)[0][1])
    again = (scores - of.scores(of.batch, seed=1)).abs().max().item()
    apart = (scores[: len(part)] - part).abs().max().item()
    if again > limit:
        text = f"the same rows, evaluated twice, differ by {again:.2g}"
        yield of.says("error", text, "look for dropout or noise that does not ask self.training")
    elif apart > limit:
        text = f"the scores of the first {len(part)} rows differ by {apart:.2g} without the others"
        advice = "predictions depend on the batch: look for batch statistics, or an operation over dimension 0"
        yield of.says("error", text, advice)
    else:
        yield of.says("ok", "each row has scores of its own, twice the same")


def _modalities(of: Subject) -> Iterator[Remark]:
    if of.rows < 2:
        return
    scores = of.scores(of.batch, train=True)
    if (scores - scores[0]).abs().max() < 1e-7:
        advice = "a head that begins at 0 does so; else the model reads neither text nor image"
        yield of.says("warning", "all rows get the same scores", advice)
        return
    unread = []
    for modality, keys in {"text": _TEXT, "image": _IMAGE}.items():
        swapped = splitting.rows_of(of.batch, slice(None), of.rows)
        for key in [key for key in swapped if keys.match(key)]:
            swapped[key] = _rolled(swapped[key], of.rows)
        if torch.allclose(of.scores(swapped, train=True), scores, rtol=1e-6, atol=1e-7):
            unread.append(modality)
    if not unread:
        yield of.says("ok", "scores depend on text and image")
    elif of.name.startswith("unimodal_"):
        yield of.says("ok", f"scores do not depend on the {unread[0]}, as {of.name} is made")
    else:
        text = f"scores do not depend on the {' or the '.join(unread)}"
        yield of.says("warning", text, "with those of another row, they are equal: forward never uses it")


def _rolled(value: Any, rows: int) -> Any:
    """Each row's entry moved to the next row."""
    if isinstance(value, Mapping):
        return type(value)({key: _rolled(entry, rows) for key, entry in value.items()})
    if torch.is_tensor(value) and value.dim() and len(value) == rows:
        return value.roll(1, 0)
    is_list = isinstance(value, (list, tuple)) and len(value) == rows
    return [*value[-1:], *value[:-1]] if is_list else value


def _texts(of: Subject) -> Iterator[Remark]:
    tokens_of, most, unknown, key = _tokenizer(of.dataset.text_processor)
    cut, strange, total = [], 0, 0
    for row in (of.dataset.annotation_db[number] for number in range(len(of.dataset))):
        tokens = tokens_of(row["text"])
        total, strange = total + len(tokens), strange + sum(map(unknown, tokens))
        if len(tokens) > most:
            cut.append(str(int(row["id"])))
    of_texts, of_tokens = len(cut) / len(of.dataset), strange / max(total, 1)
    if of_texts:
        verdict: Verdict = "warning" if of_texts > _MANY else "note"
        text = f"{len(cut)} of {len(of.dataset)} texts have more than {most} tokens, and are cut"
        where = "dataset_config.hateful_memes.processors.text_processor.params"
        yield Remark(verdict, "", text, f"{where}.{key} allows more, where the model does", cut)
    if of_tokens > _MANY:
        text = f"{100 * of_tokens:.0f} % of the tokens are not in the vocabulary"
        yield Remark("warning", "", text, "is it the vocabulary of this model, and of this language?")
    if not of_texts and of_tokens <= _MANY:
        yield Remark("ok", "", f"no text is cut, {100 * of_tokens:.1f} % of the tokens are unknown")


def _tokenizer(processor: Any) -> tuple[Callable[[str], list[str]], int, Callable[[str], bool], str]:
    """How a text becomes tokens, how many are kept, which is not known, and the key for how many."""
    inner = getattr(processor, "processor", processor)
    if hasattr(inner, "_tokenizer"):
        special, unknown = 2, inner._tokenizer.unk_token
        most = inner._max_seq_length - special
        return inner._tokenizer.tokenize, most, lambda token: token == unknown, "max_seq_length"
    vocabulary, index = inner.vocab, inner.vocab.get_unk_index()

    def tokens_of(text: str) -> list[str]:
        return list(inner.preprocessor({"text": text})["text"])

    # A look-up of its own would add the word.
    return tokens_of, inner.max_length, lambda t: vocabulary.stoi.get(t, index) == index, "max_length"


def _overfits(of: Subject) -> Iterator[Remark]:
    batch = splitting.rows_of(of.batch, slice(_ROWS), of.rows)
    rates = [group.get("initial_lr", group["lr"]) for group in of.optimizer.param_groups]
    for group, rate in zip(of.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate  # a schedule begins at 0
    begun = time.monotonic()
    first, last = _learn(of, batch, of.optimizer)
    if last < _LEARNT:
        text = f"{min(_ROWS, of.rows)} rows are learnt: the loss falls from {first:.2f} to {last:.3f}"
        yield of.says("ok", text)
        return
    text = f"in {_STEPS} updates at the run's rate of {max(rates):g}, the loss falls to {last:.2f}"
    best = last
    for rate in _OWN_RATES:
        if (time.monotonic() - begun) * 2 > _LIMIT:
            yield of.says("note", f"{text}; larger rates would take too long here")
            return
        own = torch.optim.Adam([p for p in of.model.parameters() if p.requires_grad], rate)
        with as_before(of.model, of.optimizer):
            best = min(best, _learn(of, batch, own)[1])
        if best < _LEARNT:
            advice = "it can learn; a fine-tuning's small rate takes more updates"
            yield of.says("note", f"{text}, at {rate:g} to {best:.3f}", advice)
            return
    advice = "a model that can learn knows a few rows by heart: look at its loss, its inputs and what is frozen"
    yield of.says("error", f"{text}, and at no other rate below {best:.2f}", advice)


def _learn(of: Subject, batch: Any, optimizer: Any) -> tuple[float, float]:
    """Train on one batch without dropout; the first loss and the smallest."""
    without_chance(of.model)
    losses: list[float] = []
    while len(losses) < _STEPS and min(losses, default=math.inf) >= _LEARNT / 10:
        optimizer.zero_grad()
        loss = _total(of.output(batch)["losses"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses[0], min(losses)


CHECKS: dict[str, tuple[Callable[[Subject], Iterable[Remark]], int]] = {
    "scores": (_scores, 0),
    "parameters": (_parameters, 3),
    "rows": (_rows_apart, 3),
    "modalities": (_modalities, 3),
    "texts": (_texts, 0),
    "one batch": (_overfits, 3 * _STEPS),
}
"""Name → the check, and about how many forward passes it takes."""
