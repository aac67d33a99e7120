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


def _run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8"
    )


def test_help_imports_no_heavy_package() -> None:
    # Under Wine both streams arrive as one.
    process = _run_python("-X", "importtime", "-m", "mmf_win", "--help")
    imported = {line.rsplit("|", 1)[-1].strip() for line in (process.stdout + process.stderr).splitlines()}
    assert "mmf_win.cli" in imported
    assert not HEAVY & imported


def test_command_modules_import_no_heavy_package() -> None:
    lines = [
        "import importlib, sys",
        "from mmf_win.cli import COMMANDS",
        "for name in COMMANDS: importlib.import_module('mmf_win.commands.' + name.replace('-', '_'))",
        f"print(*({HEAVY!r} & set(sys.modules)))",
    ]
    assert _run_python("-c", "\n".join(lines)).stdout.split() == []


def _parse_module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _iter_undocumented(node: ast.Module | ast.ClassDef, qualified_name: str) -> Iterator[str]:
    if ast.get_docstring(node) is None:
        yield qualified_name
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name[0] != "_":
            child_name = f"{qualified_name}.{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from _iter_undocumented(child, child_name)
            elif ast.get_docstring(child) is None:
                yield child_name


def _is_inherited(name: str) -> bool:
    """Return whether a method inherits its docstring."""
    module, *names = name.split(".")
    [path] = (path for path in MODULES if path.stem == module)
    value = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for part in names:
        value = getattr(value, part)
    return inspect.getdoc(value) is not None


def test_every_public_name_is_documented() -> None:
    undocumented = [name for path in MODULES for name in _iter_undocumented(_parse_module(path), path.stem)]
    assert [name for name in undocumented if not (name.count(".") > 1 and _is_inherited(name))] == []


def test_modules_have_at_most_400_lines() -> None:
    modules = (path for folder in ("mmf_win", "scripts", "tests") for path in (ROOT / folder).rglob("*.py"))
    assert [path for path in modules if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []


@pytest.fixture(scope="module")
def commands_doc() -> ModuleType:
    """Return the script that generates the reference of commands."""
    return load_script("commands_doc")


@pytest.mark.parametrize("page", ["commands.md", "presets.md", "python.md"])
def test_generated_reference_is_up_to_date(commands_doc: ModuleType, page: str) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if f"\nclick=={importlib.metadata.version('click')}\n" in pins:  # other versions format help differently
        current = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert current == commands_doc.PAGES[page](), "run scripts/commands_doc.py"


def test_readme_names_all_commands_and_no_unknown_one(commands_doc: ModuleType) -> None:
    names = {name for name, _ in commands_doc.iter_command_help()}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {f"mmfw {name}" for name in COMMANDS} <= set(re.findall(r"mmfw [a-z-]+", readme))
    mentions = re.findall(r"^(?:\$ )?(mmfw [a-z-]+)|`(mmfw [a-z-]+)", readme, re.MULTILINE)
    assert {first or second for first, second in mentions} <= names


MARKDOWN_FILES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))


@pytest.mark.parametrize("name", MARKDOWN_FILES)
def test_links_into_the_repository_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    broken = []
    for file, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", text):
        target = (ROOT / name).parent / file if file else ROOT / name
        if not target.exists() or (anchor and anchor not in _read_anchors(target)):
            broken.append(f"{file}#{anchor}")
    assert broken == []


def _read_anchors(path: Path) -> set[str]:
    headings = re.findall("^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_table_of_packages_matches_files_and_import_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| package | contents |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [set(re.findall(r"`([a-z_]+)(?:/|\.py)`", row.split("|")[1])) for row in table.splitlines()]
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = settings.split("\nlayers = [\n")[1].split("]")[0].splitlines()
    assert rows == [set(re.findall(r"mmf_win\.([a-z_]+)", layer)) for layer in layers]
    modules = [*(ROOT / "mmf_win").glob("*.py"), *(ROOT / "mmf_win").glob("*/__init__.py")]
    existing = {path.parent.name if path.stem == "__init__" else path.stem for path in modules}
    assert set.union(*rows) == existing - {"__main__", "mmf_win"}


def _find_import_cycle(package: str) -> list[str]:
    """Return the modules of an import cycle, each followed by one that it imports, even if only in a function."""
    grimp = pytest.importorskip("grimp", reason="import-linter is not installed")
    graph = grimp.build_graph(package, cache_dir=None)
    try:
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
    except CycleError as error:
        return [*reversed(error.args[1])]
    return []


def test_modules_have_no_import_cycle() -> None:
    cycle = _find_import_cycle("mmf_win")
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
def test_import_cycle_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, str], cycle: set[str]
) -> None:
    package = f"{tmp_path.name}_package"  # unique, since Python caches imported packages
    (tmp_path / package).mkdir()
    for name, code in {"__init__": "", **modules}.items():
        (tmp_path / package / f"{name}.py").write_text(code.format(package), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(_find_import_cycle(package)) == {f"{package}.{name}".rstrip(".") for name in cycle}


def test_images_of_docs_are_small() -> None:
    images = list((ROOT / "docs").rglob("*.png"))
    assert images
    assert [image.name for image in images if image.stat().st_size > 300_000] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_has_examples(name: str) -> None:
    command = _load_command(name)
    help_text = command.get_help(click.Context(command))
    assert "Examples:" in help_text or "Example:" in help_text


def test_dependencies_are_pinned_at_tested_and_lowest_version() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins, tested = _read_pins("constraints-lowest.txt"), _read_pins("constraints.txt")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    tools = {"ruff", "codespell", "mypy", "import-linter", "mkdocs-material"}  # the code does not import them
    for name, bound in re.findall(r'^ +"([A-Za-z0-9_.-]+)>=([0-9.]+)', text, re.MULTILINE):
        assert f"\n{name.lower()}==" in pinned or name == "setuptools"
        if name in ("torch", "torchvision"):
            assert pins[name] == tested[name]
        elif name not in tools:
            assert f"{pins[name]}.".startswith(f"{bound}."), name


def _read_pins(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==([0-9.]+)$", text, re.MULTILINE))


def _load_command(name: str) -> click.Command:
    command: click.Command = import_module(f"mmf_win.commands.{name.replace('-', '_')}").command
    return command


def _iter_options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (name for name in [*parameter.opts, *parameter.secondary_opts] if name.startswith("--"))
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            yield from _iter_options(subcommand)


def _string_template(node: ast.expr) -> str:
    """Return the text of a string expression, with an ellipsis for each inserted value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_string_template, node.values))
    return "…"


@cache
def _list_strings(folder: Path) -> list[str]:
    """Return the strings in a folder's modules, except docstrings."""
    nodes = [node for path in folder.rglob("*.py") for node in ast.walk(_parse_module(path))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = (node for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr)))
    return [_string_template(string) for string in strings if id(string) not in docstrings]


def _documented_messages() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall("^### `(.*)`$", page, re.MULTILINE)
    return [message for message in messages if message != "CUDA out of memory"]  # a message of PyTorch


@pytest.mark.parametrize("message", _documented_messages())
def test_documented_message_is_in_the_code(message: str) -> None:
    assert message in "\n".join(_list_strings(ROOT / "mmf_win"))


def _iter_error_classes(base: type[MmfwError] = MmfwError) -> Iterator[type[MmfwError]]:
    yield base
    for subclass in base.__subclasses__():
        yield from _iter_error_classes(subclass)


def test_documented_exit_codes_match_the_errors() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \|", page.partition("## Exit codes")[2], re.MULTILINE)
    assert {int(code) for code in listed} == {0, *(error.exit_code for error in _iter_error_classes())}


def test_pages_are_in_the_navigation_of_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([a-z-]+\.md)$", site, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(listed)


@cache
def _option_or_command_pattern() -> re.Pattern[str]:
    """Return a pattern that matches an option or a command of mmfw."""
    options = {re.escape(option) for name in COMMANDS for option in _iter_options(_load_command(name))}
    return re.compile(rf"(?<![\w-])({'|'.join(options)})(?![\w-])|\bmmfw ({'|'.join(COMMANDS)})\b")


def test_archives_package_names_no_options_or_commands() -> None:
    strings = _list_strings(ROOT / "mmf_win" / "archives")
    assert [string for string in strings if _option_or_command_pattern().search(string)] == []


def _has_print_call(path: Path) -> bool:
    functions = (node.func for node in ast.walk(_parse_module(path)) if isinstance(node, ast.Call))
    return any(
        isinstance(node, ast.Name) and node.id in ("print", "print_status", "print_result") for node in functions
    )


def test_only_commands_print() -> None:
    # The Examiner prints tables in a notebook, like that of mlrunner. run.py is copied into exported models.
    exceptions = {"cli.py", "console.py", "__main__.py", "examiner.py", "run.py"}
    silent_modules = (path for path in MODULES if path.parent.name != "commands" and path.name not in exceptions)
    assert [path for path in silent_modules if _has_print_call(path)] == []


@pytest.mark.parametrize("package", ["commands", "export"])
def test_functions_of_commands_have_at_most_55_lines(package: str) -> None:
    get_raw_docstring = partial(ast.get_docstring, clean=False)
    lengths = {
        f"{path.name}: {node.name}": (node.end_lineno or 0) - node.lineno - (get_raw_docstring(node) or "").count("\n")
        for path in (ROOT / "mmf_win" / package).rglob("*.py")
        for node in ast.walk(_parse_module(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert {name: lines for name, lines in lengths.items() if lines > 55} == {}


def _iter_functions_with_untyped_options(path: Path) -> Iterator[str]:
    """Yield the public functions with a ``**parameter`` of type Any, except nested functions."""
    bodies = [_parse_module(path).body]
    bodies += [node.body for node in bodies[0] if isinstance(node, ast.ClassDef)]
    for node in (node for body in bodies for node in body if isinstance(node, ast.FunctionDef)):
        annotation = node.args.kwarg and node.args.kwarg.annotation
        if node.name[0] != "_" and annotation is not None and ast.unparse(annotation) == "Any":
            yield f"{path.name}: {node.name}"


@pytest.mark.parametrize("package", ["commands", "runs", "inputs", "results", "export", "sweeps"])
def test_public_functions_have_no_untyped_options(package: str) -> None:
    # options.py passes settings of an option to click.
    paths = (path for path in (ROOT / "mmf_win" / package).rglob("*.py") if path.name != "options.py")
    assert [name for path in paths for name in _iter_functions_with_untyped_options(path)] == []


def _iter_platform_skip_reasons(path: Path) -> Iterator[str]:
    """Yield the skip reasons of tests that one platform skips; CI allows any reason under Wine."""
    for node in ast.walk(_parse_module(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.skipif":
            condition = ast.unparse(node.args[0])
            if "sys.platform" in condition or condition == "not is_wine()":
                yield from (ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg == "reason")


def test_platform_skip_reasons_name_windows_as_ci_requires() -> None:
    reasons = (reason for path in (ROOT / "tests").rglob("test_*.py") for reason in _iter_platform_skip_reasons(path))
    assert [reason for reason in reasons if "Windows" not in reason] == []


# Modules that parse messages of other libraries, which have no class or field for the cause.
_MESSAGE_PARSERS = {
    "archives/zip": "zipfile has one class for everything that it cannot read",
    "archives/zip_reader": "lzma has one class for all errors of liblzma",
    "inputs/hub": "only the first line of a message of huggingface_hub is shown",
    "runs/checkpoints": "a library may name a pinned copy anywhere in its error; the user knows the original name",
    "runs/prediction": "a library may name the annotations that were generated from the user's table",
    "sweeps/ray_backend": "Ray passes on only the text of an error",
    "worker/hooks/checkpoint_io": "torch has one class for all files that it refuses",
    "worker/hooks/checkpoints": "torch has one class for weights that do not fit and other errors",
    "worker/launcher": "only the first line of a library's message is shown",
    "worker/outcome": "a DataLoader passes on only the text of an error",
    "worker/tasks/export": "torch's exporter states the cause only in a text",
}
_STRING_METHODS = {"replace", "removeprefix", "removesuffix", "partition", "rpartition", "startswith", "endswith"}
_STRING_METHODS |= {"split", "rsplit", "find", "index", "search", "match", "fullmatch", "findall", "sub"}


def _edits_message(node: ast.AST) -> bool:
    """Return whether a node parses or edits the text of an error or a hint; blanks may be collapsed."""
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], ast.In | ast.NotIn) and any(map(_is_message, node.comparators))
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return (
        node.func.attr in _STRING_METHODS and any(map(_is_message, [node.func.value, *node.args])) and bool(node.args)
    )


def _is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.BoolOp):
        return any(map(_is_message, node.values))
    if isinstance(node, ast.Attribute):
        return node.attr == "hint"
    texts = ("str(error)", "str(failed)", "str(mismatch)", "str(exit_.code)", "str(mmf.error)", "str(result.error)")
    return isinstance(node, ast.Call) and ast.unparse(node) in texts


def test_only_listed_modules_parse_or_edit_messages() -> None:
    modules = {
        path.relative_to(ROOT / "mmf_win").with_suffix("").as_posix()
        for path in MODULES
        if any(map(_edits_message, ast.walk(_parse_module(path))))
    }
    assert modules == _MESSAGE_PARSERS.keys()
