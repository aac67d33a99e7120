"""Interface of trackers, and the check that a server is one."""

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

_CLASS_NAMES = {"mlflow": "MLflowTracker", "clearml": "ClearMLTracker", "wandb": "WandbTracker"}
TRACKERS = tuple(_CLASS_NAMES)
#: Checkpoint to upload.
CheckpointChoice = Literal["best", "last", "none"]
#: Project or experiment, unless the tracker's own environment variable names another.
DEFAULT_PROJECT = "hateful-memes"
OFFLINE = "offline"
#: Destination of runs: a server, an offline folder, a store on this machine, or none.
UploadTarget = Literal["server", "offline", "local", "disabled"]
_ANSWER_TIMEOUT_S, _MAX_ANSWER_BYTES = 3.0, 1 << 20


@dataclass(frozen=True)
class MetricPoint:
    """Value of a series; ``t`` is in seconds since the epoch."""

    name: str
    value: float
    step: int
    t: float


@dataclass(frozen=True)
class RunInfo:
    """Run or sweep to open at a tracker.

    Attributes:
        key: Unique hexadecimal digits.
        name: Displayed name.
        created: Time of creation in seconds since the epoch.
        parent: Sweep of the run.
        lock: File to lock while a sweep is created; ``None`` for a run.
        folder: Folder for files of the tracker.
        id: ID from the environment variable, or else from the upload state.
    """

    key: str
    name: str
    created: float
    parent: RunInfo | None = None
    lock: str | None = None
    folder: Path | None = None
    id: str | None = None


class Tracker(ABC):
    """Connection to a tracker; one run at a time is open.

    The tracker's package is imported when the first run is opened. Methods may raise any of its exceptions.

    Attributes:
        name: Name of the tracker and its package.
        address_variable: Environment variable with the address of the server.
        id_variable: Environment variable with the ID of the run to use.
        probe: Request that needs no key: path, body to post, and keys, one of which is in the JSON response.
        confirms: If False, data is only sure to have arrived after :meth:`close`.
        server: Address of the server, or :data:`OFFLINE`.
        project: Project or experiment.
        is_reachable: Whether the server answered the probe.
        upload: Destination of the runs.
        note: Information about the destination for users.
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
        """Server and project, without secrets."""
        return redact_urls(f"{self.server} {self.project}")

    @property
    def env_run_id(self) -> str | None:
        """ID of the run in :attr:`id_variable`, for commands that send exactly one run."""
        return os.environ.get(self.id_variable) or None

    @property
    def host(self) -> str:
        """Server without user and password, as the start of URLs."""
        return re.sub("(?<=//).*@", "", self.server).rstrip("/")

    def require_settings(self) -> bool:
        """Check the settings for uploads.

        Returns:
            Whether the address is that of a web server.

        Raises:
            MmfEnvironmentError: A package is missing.
            UsageError: The address can never work, or there is no key for it.
        """
        return self.upload == "server"

    def require_usable(self) -> None:
        """Check that the tracker's package is installed and that its server is one.

        A server that does not answer only causes a warning, because it may do so later. A server that
        demands a key is accepted.

        Raises:
            MmfEnvironmentError: The package is missing.
            UsageError: The address is not that of such a server.
        """
        from http.client import HTTPException  # here, as every training imports this module

        require_packages(self.name, extra=f"[{self.name}]")
        if not self.require_settings():
            return
        hint = f"set {self.address_variable} to the server's address, http://HOST:PORT or https://HOST"
        not_a_server = UsageError(f"{self.address} is not a server of {self.name}", hint=hint)
        if not re.match("https?://[^/]", self.server, re.IGNORECASE):
            raise not_a_server
        try:
            content = self._probe_server()
        except OSError as error:
            self.is_reachable, reason = False, getattr(error, "reason", error)
            _log.warning("%s at %s does not answer: %s", self.name, redact_urls(self.server), reason)
            return
        except (ValueError, HTTPException):  # an invalid address, or not a web server
            raise not_a_server from None
        if content is None:
            return
        with suppress(ValueError, TypeError):
            if self.probe[2] & set(json.loads(content)):
                return
        raise not_a_server

    def _probe_server(self) -> bytes | None:
        """Return the response to the probe, or ``None`` if the server demands a key."""
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        path, body, _ = self.probe
        request = Request(f"{self.host}{path}", body, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=_ANSWER_TIMEOUT_S) as answer:
                return bytes(answer.read(_MAX_ANSWER_BYTES))
        except HTTPError as error:
            content = error.read(_MAX_ANSWER_BYTES)
            if b"Invalid Host header" in content:
                hint = f"restart it with `mlflow server --allowed-hosts {request.host},localhost:*` "
                hint += "and all other names that clients use"
                message = f"the server at {self.host} does not accept the host name {request.host}"
                raise UsageError(message, hint=hint) from None
            if error.code in (401, 403):
                return None
            if error.code != 404:
                raise
            return content

    @abstractmethod
    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        """Find or create the run by its key; return its ID and its URL or folder."""

    @abstractmethod
    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Set the parameters and tags of the run; both are complete."""

    @abstractmethod
    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        """Add points to the series of the run."""

    @abstractmethod
    def log_artifact(self, path: Path, folder: str) -> None:
        """Upload a file, replacing the one with the same name; checkpoints go to ``checkpoints``."""

    @abstractmethod
    def set_status(self, state: str, t: float) -> None:
        """Set the status of the run since ``t``; see :func:`mmf_win.runs.history.run_state`."""

    def close(self) -> None:  # noqa: B027 - most trackers wait for each response
        """Wait until all data has arrived."""

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Convert exceptions of the tracker's package, and print its output to stderr instead of stdout.

        Raises:
            MmfEnvironmentError: The package raised an exception within the block.
        """
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            if isinstance(error, MmfwError) or getattr(error, "errno", None):  # a disk error
                raise
            hint = f"run the same command again {retry_advice(describe_error(error))}"
            raise MmfEnvironmentError(f"{self.name} at {self.address}: {describe_error(error)}", hint=hint) from None


def describe_error(error: Exception) -> str:
    """Summarize an exception of a tracker's package."""
    text = " ".join(redact_urls(str(error)).split())
    if re.search("Max retries exceeded|timed out|[Cc]onnection (refused|reset|aborted)", text):
        return "server does not answer"
    return text[:200] or type(error).__name__


def retry_advice(reason: str) -> str:
    """Return when to retry a command that failed for this reason: later, or only after a fix."""
    is_temporary = re.search(r"does not answer|no time|\b(429|50[0234])\b|Service Unavailable", reason)
    return "later" if is_temporary else "after fixing the problem"


def require_no_env_run_id(trackers: Iterable[Tracker]) -> None:
    """Check that no environment variable names a run, for commands that send several.

    Raises:
        UsageError: A variable names one.
    """
    for tracker in trackers:
        if tracker.env_run_id:
            message = f"{tracker.id_variable} names one run, but this command uploads several or creates one"
            raise UsageError(message, hint=f"unset {tracker.id_variable}")


def create_tracker(name: str) -> Tracker:
    """Create a tracker by its name."""
    module = import_module(f"mmf_win.tracking.{name}_tracker")
    tracker: Tracker = getattr(module, _CLASS_NAMES[name])()
    return tracker
