"""Which source word a target word comes from, read off the cross-attention."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlx_transformer.decoding.batch import Ids, padded
from mlx_transformer.model import Transformer
from mlx_transformer.tokenizer import WORD_START

# The last layers look at what is being translated now; earlier ones look around.
LAYERS = 2

Link = tuple[int, int]  # source word, target word, counted from 0


def cross_attention(model: Transformer, pairs: Sequence[tuple[Ids, Ids]]) -> list[np.ndarray]:
    """By pair, the weights (target tokens, source tokens): means over heads and the last layers.

    Sources are whole, targets without their end; row i is where the model looks as it writes
    token i.
    """
    config = model.config
    source = padded([ids for ids, _ in pairs], config.pad_id, config.vocab_size)
    shifted = [[config.first_id, *ids] for _, ids in pairs]
    target = padded(shifted, config.pad_id, config.target_size)
    layers = model.attention_maps(mx.array(source), mx.array(target)).cross[-LAYERS:]
    weights = np.array(mx.stack(layers).mean(axis=(0, 2)).astype(mx.float32))
    return [
        matrix[: len(target_ids), : len(source_ids)]
        for matrix, (source_ids, target_ids) in zip(weights, pairs, strict=True)
    ]


def words_of(tokens: Sequence[str]) -> list[list[int]]:
    """Token numbers by word; a word starts at every token marked so."""
    words: list[list[int]] = []
    for i, token in enumerate(tokens):
        if not words or token.startswith(WORD_START):
            words.append([])
        words[-1].append(i)
    return words


def word_texts(text: str, tokens: Sequence[str]) -> list[str]:
    """The words of `words_of` as they stand in the text that the tokens were cut from."""
    spaced = text.split()
    words = ["".join(tokens[i] for i in word).replace(WORD_START, "") for word in words_of(tokens)]
    # Tokens are cut from normalised text, but it has as many words.
    return spaced if len(spaced) == len(words) else words


def word_weights(attention: np.ndarray, source: Sequence[str], target: Sequence[str]) -> np.ndarray:
    """(target words, source words): the attention that a target word's tokens pay to all tokens of
    a source word, as a mean over the former"""
    columns, rows = words_of(source), words_of(target)
    if not columns or not rows:
        return np.zeros((len(rows), len(columns)), attention.dtype)
    sums = np.add.reduceat(attention, [word[0] for word in columns], axis=1)
    sums = np.add.reduceat(sums, [word[0] for word in rows], axis=0)
    return sums / np.array([[len(word)] for word in rows], attention.dtype)


def align(attention: np.ndarray, source: Sequence[str], target: Sequence[str]) -> list[Link]:
    """Each target word with the source word that gets most of its attention.

    Source words that get most of none follow the target word that attends to them most.
    """
    weights = word_weights(attention, source, target)
    if not weights.size:
        return []
    links = [[int(i)] for i in weights.argmax(axis=1)]
    for i in set(range(weights.shape[1])).difference(*links):
        links[weights[:, i].argmax()].append(i)
    return [(i, j) for j, linked in enumerate(links) for i in linked]


def join_attention(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Sentences one after the other, each attending to itself only: (...,T,S), and all in one."""
    rows, columns = np.sum([matrix.shape[-2:] for matrix in matrices], axis=0)
    joined = np.zeros((*matrices[0].shape[:-2], rows, columns), np.float32)
    row = column = 0
    for matrix in matrices:
        T, S = matrix.shape[-2:]
        joined[..., row : row + T, column : column + S] = matrix
        row, column = row + T, column + S
    return joined


def join_links(
    matrices: Sequence[np.ndarray], sources: Sequence[list[str]], targets: Sequence[list[str]]
) -> list[Link]:
    """The alignment of sentences one after the other, words counted through."""
    links: list[Link] = []
    source_words = target_words = 0
    for matrix, source, target in zip(matrices, sources, targets, strict=True):
        links += [(source_words + i, target_words + j) for i, j in align(matrix, source, target)]
        source_words += len(words_of(source))
        target_words += len(words_of(target))
    return links
