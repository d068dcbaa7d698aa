"""The encoder-decoder Transformer of "Attention Is All You Need" on MLX."""

from importlib import import_module
from typing import TYPE_CHECKING

from mlx_transformer.cpu import startup

if TYPE_CHECKING:
    from mlx_transformer.config import ModelConfig
    from mlx_transformer.decoding.completer import Completer, Completion
    from mlx_transformer.decoding.options import SearchOptions
    from mlx_transformer.decoding.pivot import Pivot
    from mlx_transformer.decoding.text_encoder import TextEncoder
    from mlx_transformer.decoding.translator import Translation, Translator
    from mlx_transformer.errors import InputError
    from mlx_transformer.hub import load_completer, load_text_encoder
    from mlx_transformer.installed import load
    from mlx_transformer.model import Transformer

__version__ = "0.1.0"
__all__ = [
    "Completer",
    "Completion",
    "InputError",
    "ModelConfig",
    "Pivot",
    "SearchOptions",
    "TextEncoder",
    "Transformer",
    "Translation",
    "Translator",
    "__version__",
    "load",
    "load_completer",
    "load_text_encoder",
]

# Must come before anything imports mlx.core: later it would have no effect.
startup.prepare()

_HOMES = {
    "Completer": "mlx_transformer.decoding.completer",
    "Completion": "mlx_transformer.decoding.completer",
    "InputError": "mlx_transformer.errors",
    "ModelConfig": "mlx_transformer.config",
    "Pivot": "mlx_transformer.decoding.pivot",
    "SearchOptions": "mlx_transformer.decoding.options",
    "TextEncoder": "mlx_transformer.decoding.text_encoder",
    "Transformer": "mlx_transformer.model",
    "Translation": "mlx_transformer.decoding.translator",
    "Translator": "mlx_transformer.decoding.translator",
    "load": "mlx_transformer.installed",
    "load_completer": "mlx_transformer.hub",
    "load_text_encoder": "mlx_transformer.hub",
}


def __getattr__(name: str) -> object:
    """Import public names on first use, so that `--help` does not wait for MLX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
