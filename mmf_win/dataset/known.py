"""Checksums of the dataset's archives as Facebook and DrivenData published them."""

from __future__ import annotations

# MMF's mmf_cli/hm_convert.py, POSSIBLE_CHECKSUMS; the last one only in 1.0.0rc12
_SHA256 = frozenset(
    {
        "d8f1073f5fbf1b08a541cc2325fc8645619ab8ed768091fb1317d5c3a6653a77",
        "a424c003b7d4ea3f3b089168b5f5ea73b90a3ff043df4b8ff4d7ed87c51cb572",
        "6e609b8c230faff02426cf462f0c9528957b7884d68c60ebc26ff83846e5f80f",
        "c1363aae9649c79ae4abfdb151b56d3d170187db77757f3daa80856558ac367c",
    }
)


def is_known(sha256: str) -> bool:
    """Whether an archive with this hash is one of those that were published."""
    return sha256 in _SHA256
