"""``KEY=VALUE`` overrides, set in a configuration as MMF sets them, or refused.

``mmf.utils.configuration._merge_with_dotlist`` sets keys that exist and refuses others. It accepts and drops
some, such as a value for a group of keys, and takes some for something else, such as ``[-1]``. These are
refused too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from mmf_win.console import first_few, shell_line
from mmf_win.errors import UnknownKey, UsageError
from mmf_win.upstream.versions import versions_with

# A name, and the number of one of its items.
_FIELD = re.compile(r"\A(.*?)(\[[^\[\]]*\])?\Z", re.DOTALL)


def assign(config: Any, overrides: Sequence[str], *, version: str, has_user_dir: bool = False) -> None:
    """Set what the overrides say.

    Args:
        config: OmegaConf's; it is changed.
        overrides: ``KEY=VALUE``.
        version: of the MMF that will get them.
        has_user_dir: the user's own code may bring models and datasets whose keys nobody knows here.

    Raises:
        UsageError: MMF would refuse an override, or would not do what it says.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    _require_apart(overrides)
    for override in overrides:
        key, _, value = override.partition("=")
        try:
            OmegaConf.from_dotlist([override])  # MMF reads each as YAML, too
            _assign(config, override, _decoded(value), version)
        except UnknownKey:
            if not (has_user_dir and key.startswith(("model_config.", "dataset_config."))):
                raise
            OmegaConf.update(config, key, _decoded(value), force_add=True)
        except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            quoted = shell_line(f"{key}={value!r}")
            raise UsageError(f"{override}: not a value that MMF can read ({reason})", hint=quoted) from None


def _assign(config: Any, override: str, value: Any, version: str) -> None:
    key = override.partition("=")[0]
    here, parent, node = "", config, config
    last: str | int = ""
    for field in key.split("."):
        [(name, item)] = _FIELD.findall(field)
        if here and not isinstance(node, Mapping):
            example = f"{here}[{name}]" if _is_list(node) else here
            raise UsageError(f"{override}: {here} has no keys below it", hint=f"{example}=VALUE")
        if name not in node:
            raise unknown_key(config, key, version)
        here += f".{name}" if here else name
        parent, last, node = node, name, _child(node, name)
        if item:
            if not _is_list(node):
                raise UsageError(f"{override}: {here} is no list", hint=f"{key.replace(item, '')}=VALUE")
            last = _position(override, here, item[1:-1], node)
            parent, node, here = node, node[last], f"{here}{item}"
    if isinstance(node, Mapping) and not key.endswith("]"):
        below = first_few([f"{key}.{name}" for name in node], 5)
        raise UsageError(
            f"{override}: {key} is a group of keys, which MMF does not set as one",
            hint=f"set a key in it: {below}" if node else _in_a_preset(key),
        )
    _require_meant(override, node, value)
    parent[last] = value


def _require_apart(overrides: Sequence[str]) -> None:
    """Refuse a list and one of its items beside each other, which MMF cannot merge."""
    keys = {override.partition("=")[0] for override in overrides}
    for key in sorted(keys):
        whole = key.partition("[")[0]
        if whole != key and whole in keys:
            raise UsageError(f"{key} and {whole} set the same list", hint=f"set it by {whole} alone")


def _require_meant(override: str, before: Any, value: Any) -> None:
    """Refuse a text where something else is meant: MMF reads Python's values, not YAML's."""
    from yaml import safe_load

    key, _, typed = override.partition("=")
    if not isinstance(value, str) or "${" in value:
        return
    bare = typed == value
    if bare and value[:1] in ("[", "{"):
        raise UsageError(
            f"{override}: not a list that MMF can read", hint=shell_line(f"{key}=['VALUE']") + ", with quotes"
        )
    if isinstance(before, (bool, int, float)) or (bare and value.lower() in ("true", "false", "null")):
        kind = "True or False" if isinstance(before, bool) else "a number"
        meant = safe_load(value) if value else value
        same = meant is None or isinstance(meant, bool)
        hint = f"{key}={meant}" if same else f"it takes {kind}, such as {key}={before}"
        raise UsageError(f"{override}: MMF would take {value!r} for a text", hint=hint)


def _child(node: Any, name: str) -> Any:
    from omegaconf.errors import InterpolationResolutionError

    try:
        return node[name]
    except InterpolationResolutionError:  # what only MMF can resolve is no group and no list
        return None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _position(override: str, here: str, index: str, items: Sequence[Any]) -> int:
    if not index.isdecimal() or int(index) >= len(items):
        first = f"the first is {here}[0]; " if items else ""
        raise UsageError(
            f"{override}: {here} has {len(items)} items and none numbered {index!r}",
            hint=f"{first}the whole list: " + shell_line(f"{here}=['VALUE']"),
        )
    return int(index)


def nearest_group(config: Any, key: str) -> tuple[str, Mapping[str, Any]]:
    """The last group of keys on the way to a key and what it holds; a value in its way is an empty one."""
    here, node = "", config
    for field in key.split(".")[:-1]:
        if field not in node:
            break
        here, node = f"{here}.{field}" if here else field, _child(node, field)
        if not isinstance(node, Mapping):
            return here, {}
    return here, node


def may_have_more(group: str) -> bool:
    """Whether a group's keys go to a class of which MMF's configuration need not name all."""
    fields = group.split(".")
    return fields[-1] == "params" or (fields[0] in ("model_config", "dataset_config") and len(fields) > 1)


def unknown_key(config: Any, key: str, version: str) -> UnknownKey:
    """The error that MMF's configuration has no such key, with what may be meant."""
    message = f"MMF {version} has no key {key}"
    others = [other for other in versions_with(key) if other != version]
    if others:
        return UnknownKey(f"{message}; {others[0]} has", version=others[0])
    known = [other for other, _ in leaves(config)]
    name = key.rpartition(".")[2]
    near = [other for other in known if other.rpartition(".")[2] == name]
    near += get_close_matches(key, known, n=3)
    hints = [f"did you mean {', '.join(dict.fromkeys(near[:3]))}?"] if near else []
    if may_have_more(nearest_group(config, key)[0]):
        hints += [_in_a_preset(key)]
    return UnknownKey(message, hint=" else ".join(hints) or None)


def _in_a_preset(key: str) -> str:
    tree = "VALUE"
    for field in reversed(key.split(".")):
        tree = f"{{ {field}: {tree} }}"
    return f"a preset of your own may add keys that code reads: settings: {tree}"


def leaves(node: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a tree by their keys, as ``training.seed``; a group without keys is one, too.

    Args:
        node: the tree.
        above: what every key begins with.
    """
    if not isinstance(node, Mapping) or not node:
        yield above, node
        return
    for name in node:
        yield from leaves(_child(node, name), f"{above}.{name}" if above else str(name))


def values_of(overrides: Sequence[str]) -> dict[str, Any]:
    """The keys that overrides set as a whole → their values as MMF reads them."""
    pairs = (override.partition("=")[::2] for override in overrides)
    return {key: _decoded(value) for key, value in pairs if not key.endswith("]")}


def _decoded(value: str) -> Any:
    """A value of the command line as MMF reads it."""
    if value == "None":
        return None
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
