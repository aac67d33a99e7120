"""Whether it was the system that killed a process, because memory ran out."""

from __future__ import annotations

import re
from pathlib import Path

# Every kill since the system started, https://docs.kernel.org/filesystems/proc.html
_COUNTERS = Path("/proc/vmstat")


def kills() -> int | None:
    """How many processes Linux has killed so far because memory ran out; None where nobody counts them.

    Compare it from before and after: more of them mean that a process which died by SIGKILL in between was
    most likely one. Kills inside a container count, too.
    """
    try:
        found = re.search(r"^oom_kill (\d+)$", _COUNTERS.read_text(encoding="ascii"), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return int(found[1]) if found else None
