"""Conventions that no linter checks: imports, documentation, and files that must agree."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import pytest

from mmf_win.cli import COMMANDS
from mmf_win.errors import MmfwError
from tests.worlds.tools import load_script

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "mmf_win").rglob("*.py"))
HEAVY = {"torch", "numpy", "mmf", "transformers", "omegaconf", "pandas", "py7zr", "tqdm", "yaml"}


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8"
    )


def test_help_imports_nothing_heavy() -> None:
    # Under Wine both streams arrive as one.
    done = _python("-X", "importtime", "-m", "mmf_win", "--help")
    imported = {line.rsplit("|", 1)[-1].strip() for line in (done.stdout + done.stderr).splitlines()}
    assert "mmf_win.cli" in imported
    assert not HEAVY & imported


def test_the_commands_import_nothing_heavy_before_they_run() -> None:
    lines = [
        "import importlib, sys",
        "from mmf_win.cli import COMMANDS",
        "for name in COMMANDS: importlib.import_module('mmf_win.commands.' + name.replace('-', '_'))",
        f"print(*({HEAVY!r} & set(sys.modules)))",
    ]
    assert _python("-c", "\n".join(lines)).stdout.split() == []


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _undocumented(node: ast.Module | ast.ClassDef, where: str) -> Iterator[str]:
    if ast.get_docstring(node) is None:
        yield where
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name[0] != "_":
            name = f"{where}.{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from _undocumented(child, name)
            elif ast.get_docstring(child) is None:
                yield name


def _is_inherited(name: str) -> bool:
    """Return whether a method inherits its docstring."""
    module, *names = name.split(".")
    [path] = (path for path in MODULES if path.stem == module)
    of = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for part in names:
        of = getattr(of, part)
    return inspect.getdoc(of) is not None


def test_every_public_name_is_documented() -> None:
    bare = [name for path in MODULES for name in _undocumented(_parsed(path), path.stem)]
    assert [name for name in bare if not (name.count(".") > 1 and _is_inherited(name))] == []


def test_every_module_can_be_read_in_one_sitting() -> None:
    modules = (path for folder in ("mmf_win", "scripts", "tests") for path in (ROOT / folder).rglob("*.py"))
    assert [path for path in modules if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []


@pytest.fixture(scope="module")
def commands_doc() -> ModuleType:
    """The script that writes the reference of commands."""
    return load_script("commands_doc")


@pytest.mark.parametrize("page", ["commands.md", "presets.md", "python.md"])
def test_the_reference_is_what_the_code_says(commands_doc: ModuleType, page: str) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if f"\nclick=={importlib.metadata.version('click')}\n" in pins:  # another version lays it out otherwise
        written = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert written == commands_doc.PAGES[page](), "run scripts/commands_doc.py"


def test_the_readme_names_every_command_and_no_other(commands_doc: ModuleType) -> None:
    names = {name for name, _ in commands_doc.iter_command_help()}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {f"mmfw {name}" for name in COMMANDS} <= set(re.findall(r"mmfw [a-z-]+", readme))
    named = re.findall(r"^(?:\$ )?(mmfw [a-z-]+)|`(mmfw [a-z-]+)", readme, re.MULTILINE)
    assert {first or second for first, second in named} <= names


TEXTS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))


@pytest.mark.parametrize("name", TEXTS)
def test_every_link_into_the_repository_leads_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    broken = []
    for file, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", text):
        target = (ROOT / name).parent / file if file else ROOT / name
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(f"{file}#{anchor}")
    assert broken == []


def _anchors(path: Path) -> set[str]:
    headings = re.findall("^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_table_of_packages_matches_the_files_and_the_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| package | contents |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [set(re.findall(r"`([a-z_]+)(?:/|\.py)`", row.split("|")[1])) for row in table.splitlines()]
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = settings.split("\nlayers = [\n")[1].split("]")[0].splitlines()
    assert rows == [set(re.findall(r"mmf_win\.([a-z_]+)", layer)) for layer in layers]
    modules = [*(ROOT / "mmf_win").glob("*.py"), *(ROOT / "mmf_win").glob("*/__init__.py")]
    there = {path.parent.name if path.stem == "__init__" else path.stem for path in modules}
    assert set.union(*rows) == there - {"__main__", "mmf_win"}


def _cycle(package: str) -> list[str]:
    """The modules of a cycle of imports, each followed by one that it imports, if only in a function."""
    grimp = pytest.importorskip("grimp", reason="import-linter is not installed")
    graph = grimp.build_graph(package, cache_dir=None)
    try:
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
    except CycleError as error:
        return [*reversed(error.args[1])]
    return []


def test_no_modules_import_one_another() -> None:
    cycle = _cycle("mmf_win")
    assert not cycle, " imports ".join(cycle)


@pytest.mark.parametrize(
    ("modules", "cycle"),
    [
        ({"a": "import {0}.b", "b": "def f():\n    from {0} import c", "c": "from {0}.a import x"}, {"a", "b", "c"}),
        ({"__init__": "from {0}.a import x", "a": "from {0} import y"}, {"", "a"}),
        (
            {"a": "from {0}.b import x", "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {0}.a"},
            {"a", "b"},
        ),
        ({"a": "from {0} import b", "b": "from {0} import c", "c": ""}, set()),
    ],
)
def test_a_cycle_of_imports_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, str], cycle: set[str]
) -> None:
    package = f"{tmp_path.name}_package"  # a name of its own, since Python remembers what it has found
    (tmp_path / package).mkdir()
    for name, code in {"__init__": "", **modules}.items():
        (tmp_path / package / f"{name}.py").write_text(code.format(package), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(_cycle(package)) == {f"{package}.{name}".rstrip(".") for name in cycle}


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs").rglob("*.png"))
    assert pictures
    assert [picture.name for picture in pictures if picture.stat().st_size > 300_000] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_examples(name: str) -> None:
    command = _command(name)
    told = command.get_help(click.Context(command))
    assert "Examples:" in told or "Example:" in told


def test_every_dependency_is_pinned_as_tested_and_at_its_lowest_version() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins, tested = _pins("constraints-lowest.txt"), _pins("constraints.txt")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    tools = {"ruff", "codespell", "mypy", "import-linter", "mkdocs-material"}  # they do not run the code
    for name, bound in re.findall(r'^ +"([A-Za-z0-9_.-]+)>=([0-9.]+)', text, re.MULTILINE):
        assert f"\n{name.lower()}==" in pinned or name == "setuptools"
        if name in ("torch", "torchvision"):
            assert pins[name] == tested[name]
        elif name not in tools:
            assert f"{pins[name]}.".startswith(f"{bound}."), name


def _pins(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==([0-9.]+)$", text, re.MULTILINE))


def _command(name: str) -> click.Command:
    found: click.Command = import_module(f"mmf_win.commands.{name.replace('-', '_')}").command
    return found


def _options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (name for name in [*parameter.opts, *parameter.secondary_opts] if name.startswith("--"))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _options(inner)


def _said(node: ast.expr) -> str:
    """A text of the code with a sign for each part that is put in when it runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_said, node.values))
    return "…"


@cache
def _texts(folder: Path) -> list[str]:
    """All of a folder's modules but docstrings."""
    nodes = [node for path in folder.rglob("*.py") for node in ast.walk(_parsed(path))]
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (node for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr)))
    return [_said(text) for text in texts if id(text) not in prose]


def _messages() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall("^### `(.*)`$", page, re.MULTILINE)
    return [message for message in messages if message != "CUDA out of memory"]  # which is PyTorch's


@pytest.mark.parametrize("message", _messages())
def test_a_message_in_troubleshooting_is_one_of_the_code(message: str) -> None:
    assert message in "\n".join(_texts(ROOT / "mmf_win"))


def _classes(of: type[MmfwError] = MmfwError) -> Iterator[type[MmfwError]]:
    yield of
    for below in of.__subclasses__():
        yield from _classes(below)


def test_the_exit_codes_are_those_of_the_errors() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \|", page.partition("## Exit codes")[2], re.MULTILINE)
    assert {int(code) for code in listed} == {0, *(error.exit_code for error in _classes())}


def test_every_page_is_in_the_contents_of_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([a-z-]+\.md)$", site, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(listed)


@cache
def _named() -> re.Pattern[str]:
    """Finds an option or a command of mmfw in a text."""
    options = {re.escape(option) for name in COMMANDS for option in _options(_command(name))}
    return re.compile(rf"(?<![\w-])({'|'.join(options)})(?![\w-])|\bmmfw ({'|'.join(COMMANDS)})\b")


def test_the_library_of_archives_names_neither_options_nor_commands() -> None:
    texts = _texts(ROOT / "mmf_win" / "archives")
    assert [text for text in texts if _named().search(text)] == []


def _prints(path: Path) -> bool:
    called = (node.func for node in ast.walk(_parsed(path)) if isinstance(node, ast.Call))
    return any(isinstance(node, ast.Name) and node.id in ("print", "print_status", "print_result") for node in called)


def test_only_commands_print() -> None:
    # The Examiner prints what its caller in a notebook asks it to print, as mlrunner's does.
    # run.py is copied, and is a program of its own.
    may = {"cli.py", "console.py", "__main__.py", "examiner.py", "run.py"}
    silent = (path for path in MODULES if path.parent.name != "commands" and path.name not in may)
    assert [path for path in silent if _prints(path)] == []


@pytest.mark.parametrize("package", ["commands", "export"])
def test_a_command_parses_calls_one_function_and_prints_so_it_is_short(package: str) -> None:
    help_of = partial(ast.get_docstring, clean=False)
    lengths = {
        f"{path.name}: {node.name}": (node.end_lineno or 0) - node.lineno - (help_of(node) or "").count("\n")
        for path in (ROOT / "mmf_win" / package).rglob("*.py")
        for node in ast.walk(_parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert {name: lines for name, lines in lengths.items() if lines > 55} == {}


def _takes_anything(path: Path) -> Iterator[str]:
    """The public functions with a ``**parameter`` of any type, but for those that are nested in others."""
    bodies = [_parsed(path).body]
    bodies += [node.body for node in bodies[0] if isinstance(node, ast.ClassDef)]
    for node in (node for body in bodies for node in body if isinstance(node, ast.FunctionDef)):
        kind = node.args.kwarg and node.args.kwarg.annotation
        if node.name[0] != "_" and kind is not None and ast.unparse(kind) == "Any":
            yield f"{path.name}: {node.name}"


@pytest.mark.parametrize("package", ["commands", "runs", "inputs", "results", "export", "sweeps"])
def test_an_option_is_typed_from_the_command_to_its_use(package: str) -> None:
    # What options.py hands on are click's own settings of an option.
    paths = (path for path in (ROOT / "mmf_win" / package).rglob("*.py") if path.name != "options.py")
    assert [name for path in paths for name in _takes_anything(path)] == []


def _skips_on_a_system(path: Path) -> Iterator[str]:
    """The reasons of the tests that are skipped on one system; CI lets any reason pass under Wine."""
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.skipif":
            condition = ast.unparse(node.args[0])
            if "sys.platform" in condition or condition == "not is_wine()":
                yield from (ast.literal_eval(word.value) for word in node.keywords if word.arg == "reason")


def test_what_a_system_skips_names_windows_so_that_ci_lets_it() -> None:
    reasons = (reason for path in (ROOT / "tests").rglob("test_*.py") for reason in _skips_on_a_system(path))
    assert [reason for reason in reasons if "Windows" not in reason] == []


# What cannot be told apart by a class or a field; none of these texts is one of mmfw's own.
_TEXTS_OF_OTHERS = {
    "archives/zip": "zipfile has one class for all that it does not read",
    "archives/zip_reader": "lzma has one class for all errors of liblzma",
    "inputs/hub": "only the first line of what huggingface_hub says is shown",
    "runs/checkpoints": "a library may name a pinned file anywhere in its error, which has another name",
    "runs/prediction": "so may one that reads the annotations that were made of the user's table",
    "sweeps/ray_backend": "Ray passes on the text of an error alone",
    "worker/hooks/checkpoint_io": "torch has one class for all that it refuses",
    "worker/hooks/checkpoints": "torch has one class for weights that do not fit and other errors",
    "worker/launcher": "only the first line of what a library says is shown",
    "worker/outcome": "a DataLoader passes on the text of an error alone",
    "worker/tasks/export": "torch's exporter has the cause in a text alone",
}
_EDITS = {"replace", "removeprefix", "removesuffix", "partition", "rpartition", "startswith", "endswith"}
_EDITS |= {"split", "rsplit", "find", "index", "search", "match", "fullmatch", "findall", "sub"}


def _edits_a_message(node: ast.AST) -> bool:
    """Return whether a node parses or edits the text of an error or a hint; blanks may be collapsed."""
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], ast.In | ast.NotIn) and any(map(_is_message, node.comparators))
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return node.func.attr in _EDITS and any(map(_is_message, [node.func.value, *node.args])) and bool(node.args)


def _is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.BoolOp):
        return any(map(_is_message, node.values))
    if isinstance(node, ast.Attribute):
        return node.attr == "hint"
    texts = ("str(error)", "str(failed)", "str(mismatch)", "str(exit_.code)", "str(mmf.error)", "str(result.error)")
    return isinstance(node, ast.Call) and ast.unparse(node) in texts


def test_no_code_parses_or_edits_the_text_of_a_message() -> None:
    found = {
        path.relative_to(ROOT / "mmf_win").with_suffix("").as_posix()
        for path in MODULES
        if any(map(_edits_a_message, ast.walk(_parsed(path))))
    }
    assert found == _TEXTS_OF_OTHERS.keys()
