"""``KEY=VALUE`` overrides, set in a configuration as MMF sets them, or refused.

``mmf.utils.configuration._merge_with_dotlist`` sets keys that are there and refuses others. Some it accepts
and drops, such as a value for a group of keys, and some mean something else to it than they say, such as
``[-1]``. These are refused too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from mmf_win.bridge.versions import versions_with
from mmf_win.console import as_typed
from mmf_win.errors import UsageError

_FIELD = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
_SHOWN = 5


def assign(config: Any, words: Sequence[str], *, version: str, has_user_dir: bool = False) -> None:
    """Set what the overrides say.

    Args:
        config: OmegaConf's; it is changed.
        words: ``KEY=VALUE`` overrides.
        version: of the MMF that will get them.
        has_user_dir: the user's own code may bring models and datasets whose keys nobody knows here.

    Raises:
        UsageError: MMF would refuse an override, or would not do what it says.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    for word in words:
        key, _, value = word.partition("=")
        try:
            OmegaConf.from_dotlist([word])  # MMF reads each as YAML, too
            _assign(config, word, _decoded(value), version)
        except _Unknown:
            if not (has_user_dir and key.startswith(("model_config.", "dataset_config."))):
                raise
            OmegaConf.update(config, key, _decoded(value), force_add=True)
        except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            quoted = as_typed(f"{key}={value!r}")
            raise UsageError(f"{word}: not a value that MMF can read ({reason})", hint=quoted) from None


class _Unknown(UsageError):
    """The configuration has no such key."""


def _assign(config: Any, word: str, value: Any, version: str) -> None:
    key = word.partition("=")[0]
    fields = key.split(".")
    node = config
    for depth, field in enumerate(fields, 1):
        is_last = depth == len(fields)
        found = _FIELD.fullmatch(field)
        name, index = found.groups() if found else (field, None)
        if not isinstance(node, Mapping) or name not in node:
            raise _unknown(config, key, version)
        here = ".".join([*fields[: depth - 1], name])
        child = _child(node, name)
        if index is not None:
            if _is_list(child) and is_last:
                child[_position(word, here, index, child)] = value
                return
            node = child[_position(word, here, index, child)] if _is_list(child) else None
            if not isinstance(node, Mapping):
                raise UsageError(f"{word}: {here} is no list", hint=f"{key.replace(f'[{index}]', '')}=VALUE")
        elif isinstance(child, Mapping):
            if is_last:
                raise _group(word, key, child)
            node = child
        elif is_last:
            node[name] = value  # type: ignore[index]
        else:
            example = f"{here}[{fields[depth]}]" if _is_list(child) else here
            raise UsageError(f"{word}: {here} has no keys below it", hint=f"{example}=VALUE")


def _child(node: Any, name: str) -> Any:
    from omegaconf.errors import InterpolationResolutionError

    try:
        return node[name]
    except InterpolationResolutionError:  # what only MMF can resolve is no group and no list
        return None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _position(word: str, here: str, index: str, items: Sequence[Any]) -> int:
    if not index.isdecimal() or int(index) >= len(items):
        allowed = f"{here}[0]" + (f" to {here}[{len(items) - 1}]" if len(items) > 1 else "")
        hint = f"{allowed}, or the whole list: " if items else "set the whole list: "
        raise UsageError(
            f"{word}: {here} has {len(items)} items and none numbered {index!r}",
            hint=hint + as_typed(f"{here}=['VALUE']"),
        )
    return int(index)


def _group(word: str, key: str, group: Mapping[str, Any]) -> UsageError:
    names = list(group)
    below = ", ".join(f"{key}.{name}" for name in names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return UsageError(
        f"{word}: {key} is a group of keys, which MMF does not set as one",
        hint=f"set a key in it: {below}" if names else _in_a_preset(key),
    )


def _unknown(config: Any, key: str, version: str) -> _Unknown:
    message = f"MMF {version} has no key {key}"
    others = [other for other in versions_with(key) if other != version]
    if others:
        github = "mmfw setup --mmf github" if others == ["1.0.0rc12"] else "mmfw setup --mmf pypi"
        return _Unknown(f"{message}; {others[0]} has", hint=github)
    known = list(_leaves(config))
    name = key.rpartition(".")[2]
    near = [other for other in known if other.rpartition(".")[2] == name]
    near += get_close_matches(key, known, n=3)
    meant = ", ".join(dict.fromkeys(near[:3]))
    hints = [f"did you mean {meant}?"] if meant else []
    if not meant or any(other.startswith(f"{key.rpartition('.')[0]}.") for other in known):
        hints.append(_in_a_preset(key))
    return _Unknown(message, hint=" ".join(hints))


def _in_a_preset(key: str) -> str:
    tree = "VALUE"
    for field in reversed(key.split(".")):
        tree = f"{{ {field}: {tree} }}"
    return f"A preset of your own may add keys: settings: {tree}"


def _leaves(node: Any, above: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for name in node:
            yield from _leaves(_child(node, name), f"{above}.{name}" if above else str(name))
    else:
        yield above


def _decoded(value: str) -> Any:
    """A value of the command line as MMF reads it."""
    if value == "None":
        return None
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
