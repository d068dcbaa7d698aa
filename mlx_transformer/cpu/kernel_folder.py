"""Where MLX keeps the CPU kernels that it compiles: a folder that nobody else can write.

MLX builds them below the temporary folder and later loads whatever lies there under the right
name, even what another user put there.
"""

import ctypes
import os
import stat
from pathlib import Path


def use() -> None:
    """Before MLX compiles anything. Where there is no such folder, MLX does without compiling."""
    folder = _private_folder()
    if folder is None:
        os.environ["MLX_DISABLE_COMPILE"] = "1"
    else:
        # Set for MLX and its compiler only: Python's own temporary files stay where they were.
        ctypes.CDLL(None).setenv(b"TMPDIR", os.fsencode(folder), 1)


def _private_folder() -> Path | None:
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folder = cache / "mlx-transformer" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _is_private(folder) and _can_build(folder) else None
    except (OSError, RuntimeError):  # nothing can be written there, or there is no home
        return None


def _is_private(folder: Path) -> bool:
    """Nobody but this user can write here, and nobody but root can put another in its place."""
    if stat.S_IMODE(folder.lstat().st_mode) & 0o077:
        return False
    return all(_is_safe(path.lstat()) for path in (folder, *folder.resolve().parents))


def _is_safe(status: os.stat_result) -> bool:
    """A directory of this user or of root; where others may write, they may not rename."""
    shared = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid()) and not shared


def _can_build(folder: Path) -> bool:
    runs = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return runs and os.access(folder, os.W_OK | os.X_OK, effective_ids=True)
