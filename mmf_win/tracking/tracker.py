"""What a tracker is asked to do, and whether what answers at its address is one."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Literal

from mmf_win.errors import MmfEnvironmentError, MmfwError, UsageError
from mmf_win.scrub import redact_urls
from mmf_win.upstream.install import require_packages

_log = logging.getLogger(__name__)

TRACKERS = ("mlflow", "clearml", "wandb")
#: Which checkpoint is sent.
CheckpointChoice = Literal["best", "last", "none"]
#: Where runs go if the tracker's own variable names no other experiment or project.
DEFAULT_PROJECT = "hateful-memes"
OFFLINE = "offline"
#: The place of sent runs: a server, an offline folder, a store on this machine, or none.
UploadTarget = Literal["server", "offline", "local", "disabled"]
_ANSWER_TIMEOUT_S, _MAX_ANSWER_BYTES = 3.0, 1 << 20  # seconds, bytes


@dataclass(frozen=True)
class MetricPoint:
    """One value of a series; ``t`` is seconds since the epoch."""

    name: str
    value: float
    step: int
    t: float


@dataclass(frozen=True)
class RunInfo:
    """A run, or a sweep: ``key`` are hexadecimal digits that no other has, ``name`` is for people.

    ``created`` is seconds since the epoch; ``lock`` the file that is locked while a sweep is made; ``folder``
    is for what a tracker keeps of a run; ``id`` is that which a variable or else the note has.
    """

    key: str
    name: str
    created: float
    parent: RunInfo | None = None
    lock: str | None = None
    folder: Path | None = None
    id: str | None = None


class Tracker(ABC):
    """A tracker, in which one run at a time is open; its package is imported as the first one is opened.

    Methods raise whatever the package does. ``server`` is its address, or :data:`OFFLINE`; ``probe`` what to
    ask there without a key (a path, and what to post), and what the answer, an object in JSON, has of this.
    ``answers`` is whether it did so. ``upload`` is where runs go, and ``note`` tells people more of it.
    Where ``confirms`` is False, what a method sends is sure to have arrived only after :meth:`close`.
    """

    name: ClassVar[str]
    address_variable: ClassVar[str]
    id_variable: ClassVar[str]
    probe: ClassVar[tuple[str, bytes | None, set[str]]]
    confirms: ClassVar[bool] = True
    server: str
    project: str
    is_reachable = True
    upload: UploadTarget = "server"
    note = ""

    @property
    def address(self) -> str:
        """Where runs go, with nothing secret."""
        return redact_urls(f"{self.server} {self.project}")

    @property
    def env_run_id(self) -> str | None:
        """The id of the run that :attr:`id_variable` names, to use where a command sends exactly one."""
        return os.environ.get(self.id_variable) or None

    @property
    def host(self) -> str:
        """Its server without a user and password, as the beginning of addresses."""
        return re.sub("(?<=//).*@", "", self.server).rstrip("/")

    def require_settings(self) -> bool:
        """Return whether its address is that of a web server, once nothing is missing to send there.

        Raises:
            MmfError: a package is missing.
            UsageError: the address can never work, or there is no key for it.
        """
        return self.upload == "server"

    def require_usable(self) -> None:
        """See that its package is there, and that what answers at its address is one.

        One that does not answer may do so later; a note says so. One that wants a key is there.

        Raises:
            MmfError: the package is missing.
            UsageError: something else answers there.
        """
        from http.client import HTTPException  # here, as every training imports this module
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        require_packages(self.name, extra=f"[{self.name}]")
        if not self.require_settings():
            return
        hint = f"set {self.address_variable} to the address of one, http://HOST:PORT or https://HOST"
        refused = UsageError(f"{self.address} is no server of {self.name}", hint=hint)
        if not re.match("https?://[^/]", self.server, re.IGNORECASE):
            raise refused
        path, body, keys = self.probe
        try:
            try:
                request = Request(f"{self.host}{path}", body, {"Content-Type": "application/json"})
                with urlopen(request, timeout=_ANSWER_TIMEOUT_S) as answer:
                    said = answer.read(_MAX_ANSWER_BYTES)
            except HTTPError as error:
                said = error.read(_MAX_ANSWER_BYTES)
                if b"Invalid Host header" in said:
                    hint = f"restart it with `mlflow server --allowed-hosts {request.host},localhost:*` "
                    hint += "and the other names that it is used by"
                    message = f"the server at {self.host} does not accept the host name {request.host}"
                    raise UsageError(message, hint=hint) from None
                if error.code in (401, 403):
                    return
                if error.code != 404:
                    raise
        except OSError as error:
            self.is_reachable, reason = False, getattr(error, "reason", error)
            _log.warning("%s at %s does not answer: %s", self.name, redact_urls(self.server), reason)
            return
        except (ValueError, HTTPException):  # no address, or no server of the web
            raise refused from None
        with suppress(ValueError, TypeError):
            if keys & set(json.loads(said)):
                return
        raise refused

    @abstractmethod
    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        """Find the run by its key, or make it there; return its id, and where people see it."""

    @abstractmethod
    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Its parameters, and what else is known of it: all there are now."""

    @abstractmethod
    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        """More of its scalars."""

    @abstractmethod
    def log_artifact(self, path: Path, folder: str) -> None:
        """A file, in place of the one of the same name; checkpoints are those in ``checkpoints``."""

    @abstractmethod
    def set_status(self, state: str, t: float) -> None:
        """How it is since ``t``; see :func:`mmf_win.runs.history.run_state`."""

    def close(self) -> None:  # noqa: B027 - most have waited for each answer
        """See to it that all has arrived."""

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Have what its package raises be one MmfError, and what that prints be no result of a command."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            if isinstance(error, MmfwError) or getattr(error, "errno", None):  # of the disk
                raise
            hint = f"run the same command again {retry_advice(describe_error(error))}"
            raise MmfEnvironmentError(
                f"{self.name} at {self.address}: {describe_error(error)}", hint=hint
            ) from None


def describe_error(error: Exception) -> str:
    """What a tracker's package raised, in a few words."""
    text = " ".join(redact_urls(str(error)).split())
    if re.search("Max retries exceeded|timed out|[Cc]onnection (refused|reset|aborted)", text):
        return "it does not answer"
    return text[:200] or type(error).__name__


def retry_advice(reason: str) -> str:
    """Return when a command that failed for this reason may work: with time alone, or not."""
    passes = re.search(r"does not answer|no time|\b(429|50[0234])\b|Service Unavailable", reason)
    return "later" if passes else "once this is fixed"


def require_no_env_run_id(trackers: Iterable[Tracker]) -> None:
    """Raise UsageError where a variable names one run of a tracker, for commands that send several."""
    for to in trackers:
        if to.env_run_id:
            message = f"{to.id_variable} names one run, and this command sends several or makes a new one"
            raise UsageError(message, hint=f"unset {to.id_variable}")


_CLASS_NAMES = {"mlflow": "MLflowTracker", "clearml": "ClearMLTracker", "wandb": "WandbTracker"}


def create_tracker(name: str) -> Tracker:
    """A tracker by its name. Raises UsageError where nothing says which server is meant."""
    module = import_module(f"mmf_win.tracking.{name}_tracker")
    tracker: Tracker = getattr(module, _CLASS_NAMES[name])()
    return tracker
