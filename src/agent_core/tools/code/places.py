"""Places outside of the project that reading programs may open without asking for that reason.

They are files and folders of the disk. Devices are excluded, and so is what the kernel shows of
processes: their environment and memory may hold secrets. Files that the system keeps from ordinary
users are excluded too, whichever user this process runs as.
"""

import re
import stat
from contextlib import suppress
from pathlib import Path

_SPECIAL = re.compile(r"/(?:dev|proc|sys)(?:/|\Z)")
_SHOWN = re.compile(
    r"""/dev/(?:full|null|random|urandom|zero)
    | /proc/(?:buddyinfo|cgroups|cpuinfo|crypto|devices|diskstats|filesystems|interrupts|loadavg
        |locks|meminfo|misc|modules|mounts|partitions|stat|swaps|uptime|version|vmstat|zoneinfo)
    | /proc/sys(?:/(?:crypto|debug|dev|fs|kernel|net|user|vm)(?:/[\w.-]+)*)?
    | /proc/(?:\d+|self|thread-self)/(?:cgroup|comm|limits|mountinfo|mounts|oom_score|stat|statm
        |status|uid_map|gid_map)
    | /proc/(?:self/)?net/(?:arp|dev|route|sockstat|snmp)
    | /sys/(?:block|bus|class|devices|fs/cgroup)(?:/[\w.:@-]+)*
    """,
    re.VERBOSE | re.ASCII,
)
"""Files in which the kernel describes the machine, and of processes nothing confidential."""

_OF_THE_SYSTEM = ("/boot/", "/etc/", "/run/", "/var/")
_SECRETS = ("/run/secrets", "/var/run/secrets")


def may_be_read(place: str) -> bool:
    """Return whether a place needs no question if it merely lies outside of the project.

    Args:
        place: resolved, and known not to hold secrets by its name; or the path named in its stead.
    """
    if not place.startswith("/"):
        return False
    if _SPECIAL.match(place):
        return _SHOWN.fullmatch(place) is not None
    if place.startswith(_SECRETS):
        return False
    if place.startswith(_OF_THE_SYSTEM):
        with suppress(OSError, ValueError):
            return bool(Path(place).stat().st_mode & stat.S_IROTH)
    return True
