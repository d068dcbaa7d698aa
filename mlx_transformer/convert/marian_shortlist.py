"""Marian's lexical shortlists (`lex*.bin`): for each source word the target words it becomes."""

import io
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_transformer.convert.byte_reader import ByteReader
from mlx_transformer.convert.tensors import Storage
from mlx_transformer.errors import InputError, naming

MAGIC = 0xF11A48D5013417F5
HEADER = 6  # numbers of 8 bytes: the magic, a checksum, `first`, `best`, and how many follow
MASK = (1 << 64) - 1
MAX_BYTES = 256 << 20


def read_shortlist(path: Path, source_words: int, target_words: int) -> bytes:
    """As our models keep it; both sides have as many words as our model, or fewer in the file."""
    with naming(path):
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"it is larger than {MAX_BYTES >> 20} MB")
        reader = ByteReader(Storage(path, path.stat().st_size, 0))
        magic, checksum, first, _, lists, count = reader.numbers("Q", HEADER)
        if magic != MAGIC:
            raise InputError("this is no shortlist in Marian's binary form")
        starts = reader.take(8 * lists).map(0, lists, "u8").astype(np.uint64)
        words = reader.take(4 * count).map(0, count, "u4").astype(np.uint32)
        if reader.position != reader.storage.nbytes or checksum != _checksum(reader.storage):
            raise InputError("the shortlist is damaged")
        _check(starts, words, first, source_words, target_words)
    # Our model may have a word more than the file, for padding: nothing is on its list.
    starts = np.pad(starts, (0, source_words + 1 - lists), mode="edge")
    arrays: dict[str, np.ndarray] = {"starts": starts, "words": words, "first": np.array(first)}
    written = io.BytesIO()
    mx.save_safetensors(written, {k: mx.array(v.astype(np.int32)) for k, v in arrays.items()})
    return written.getvalue()


def _check(
    starts: np.ndarray, words: np.ndarray, first: int, source_words: int, target_words: int
) -> None:
    in_order = len(starts) > 0 and starts[0] == 0 and bool((starts[1:] >= starts[:-1]).all())
    if not in_order or starts[-1] != len(words):
        raise InputError("the shortlist is damaged")
    known = len(starts) - 1 <= source_words and (not len(words) or words.max() < target_words)
    if not known or first > target_words:
        raise InputError("the shortlist is of other words than the model")


def _checksum(storage: Storage) -> int:
    """Of all whole numbers of 8 bytes behind the checksum itself"""
    total = 0
    for number in storage.map(16, (storage.nbytes - 16) // 8, "u8").tolist():
        total ^= (number + 0x9E3779B9 + (total << 6) + (total >> 2)) & MASK
    return total
