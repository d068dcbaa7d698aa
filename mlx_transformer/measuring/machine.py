"""Where something was measured: chip, system and versions."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from mlx_transformer import __version__, device


def machine() -> dict[str, str]:
    """Chip, cores, system and the versions that matter, for the head of a table."""
    facts = {
        "chip": _chip(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": _system(),
    }
    return facts | device.facts() | {"mlx": version("mlx"), "mlx-transformer": __version__}


def _chip() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB"


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return platform.freedesktop_os_release()["PRETTY_NAME"]
