"""Output of the commands to closed pipes and in other encodings, such as those of Windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.paths import MmfPaths

# One process prints the help of each command, an error with a folder, an error with an argument, and JSON.
CODE = """
import sys
from mmf_win.cli import COMMANDS, main
data = sys.argv[1]
codes = [main(arguments) for arguments in (["--help"], *([name, "--help"] for name in COMMANDS))]
codes += [main(arguments) for arguments in (["verify", "--data-dir", data], ["train", "--name", "имя: 名"])]
codes.append(main(["doctor"]))
print("\\f", end="")
codes.append(main(["doctor", "--json", "--data-dir", data]))
sys.exit(0 if codes == [0] * (len(codes) - 4) + [2, 2, 0, 0] else f"{codes}")
"""


@pytest.mark.parametrize("command", [["runs"], ["runs", "--json"], ["doctor"], ["runs", "--help"]])
def test_closed_stdout_is_not_an_error(mmfw_home: Path, world: MmfPaths, command: list[str]) -> None:
    command = [*command, *(["--save-dir", str(world.save_dir)] if "--help" not in command else [])]
    run = [sys.executable, "-c", "import sys; from mmf_win.cli import main; sys.exit(main())", *command]
    if sys.platform == "win32":
        run[2] = f"import sys; sys.stdout = None; {run[2]}"  # like in a program without a console
    else:
        run = ["sh", "-c", 'exec "$@" >&-', "sh", *run]
    process = subprocess.run(run, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 0 and "bug" not in process.stderr, process.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, click knows no closed pipe")
def test_closed_pipe_is_not_an_error(mmfw_home: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run([sys.executable, "-m", "mmf_win", "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.parametrize(("exit_code", "code"), [(None, 0), (0, 0), (3, 1), ("no license", 1)])
def test_exit_by_a_library_is_an_error_unless_its_code_is_0(
    capsys: pytest.CaptureFixture[str], exit_code: int | str | None, code: int
) -> None:
    assert main(lambda: sys.exit(exit_code)) == code
    assert (f"a library called sys.exit({exit_code!r})" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(("encoding", "utf8"), [("cp1252", "0"), ("cp1251", "0"), ("cp936", "0"), (None, "1")])
def test_all_characters_can_be_printed_in_any_encoding(
    mmfw_home: Path, user_dir: Path, encoding: str | None, utf8: str
) -> None:
    missing = user_dir / "нет 没有"
    environ = {**os.environ, "PYTHONUTF8": utf8, **({"PYTHONIOENCODING": encoding} if encoding else {})}
    if encoding is None:
        environ.pop("PYTHONIOENCODING", None)
    process = subprocess.run(
        [sys.executable, "-c", CODE, str(missing)], stdin=subprocess.DEVNULL, capture_output=True, env=environ
    )
    encoding = encoding or "utf-8"
    output, error = (stream.decode(encoding).replace("\r\n", "\n") for stream in (process.stdout, process.stderr))
    assert process.returncode == 0, error
    assert "Traceback" not in error

    def escape(text: str) -> str:
        return text.encode(encoding, "backslashreplace").decode(encoding)

    assert escape(str(missing)) in error and escape("'имя: 名'") in error
    assert escape(str(mmfw_home)) in output
    folders = {folder["name"]: folder["path"] for folder in json.loads(output.partition("\f")[2])["folders"]}
    assert folders["data"] == str(missing)
