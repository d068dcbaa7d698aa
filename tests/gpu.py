"""The default device looks like a GPU while the CPU computes: every GPU branch can be run here."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import mlx.core as mx


class LooksLikeGpu:
    """In the place of `mx.Device(mx.gpu)`, for comparisons."""

    type = mx.gpu

    def __eq__(self, other: object) -> bool:
        return other == mx.gpu or other is self

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "Device(gpu, 0)"


@contextmanager
def looks_like_gpu() -> Iterator[None]:
    gpu, default_stream, new_stream = LooksLikeGpu(), mx.default_stream, mx.new_stream
    with (
        patch.object(mx, "default_device", lambda: gpu),
        patch.object(mx, "default_stream", lambda _: default_stream(mx.cpu)),
        patch.object(mx, "new_stream", lambda _: new_stream(mx.cpu)),
    ):
        yield
