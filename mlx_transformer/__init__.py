"""The encoder-decoder Transformer of "Attention Is All You Need" on MLX."""

from importlib import import_module
from typing import TYPE_CHECKING

from mlx_transformer.cpu import startup

if TYPE_CHECKING:
    from mlx_transformer.config import ModelConfig
    from mlx_transformer.decoding.options import SearchOptions
    from mlx_transformer.decoding.pivot import Pivot
    from mlx_transformer.decoding.translator import Translation, Translator
    from mlx_transformer.errors import InputError
    from mlx_transformer.installed import load
    from mlx_transformer.model import Transformer

__version__ = "0.1.0"
__all__ = [
    "InputError",
    "ModelConfig",
    "Pivot",
    "SearchOptions",
    "Transformer",
    "Translation",
    "Translator",
    "__version__",
    "load",
]

# Must come before anything imports mlx.core: later it would have no effect.
startup.prepare()

_HOMES = {
    "InputError": "mlx_transformer.errors",
    "ModelConfig": "mlx_transformer.config",
    "Pivot": "mlx_transformer.decoding.pivot",
    "SearchOptions": "mlx_transformer.decoding.options",
    "Transformer": "mlx_transformer.model",
    "Translation": "mlx_transformer.decoding.translator",
    "Translator": "mlx_transformer.decoding.translator",
    "load": "mlx_transformer.installed",
}


def __getattr__(name: str) -> object:
    """Import public names on first use, so that `--help` does not wait for MLX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
