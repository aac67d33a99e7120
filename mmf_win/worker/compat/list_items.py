"""``KEY[0]=VALUE`` on a list of texts: 1.0.0rc10 takes each text for a list itself, and sets nothing."""

from __future__ import annotations

from mmf_win.worker.compat.cure import RC10, by_editing
from mmf_win.worker.compat.importing import Edit

_OLD = """                        (collections.abc.Mapping, collections.abc.Sequence),
                    ):
                        print("""
_NEW = _OLD.replace("):\n", ") or idx == len(splits) - 1:\n")

CURE = by_editing(
    Edit("mmf.utils.configuration", _OLD, _NEW),  # the condition that 1.0.0rc12 has
    name="list-items",
    cures="Configuration: KEY[0]=VALUE is dropped without a word where the list holds texts",
    mmf=RC10,
    library="any",
)
