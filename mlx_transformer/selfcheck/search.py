"""Search: what it writes on the device and on the CPU, and whether its cache tells the truth."""

from collections.abc import Iterator
from contextlib import nullcontext

from mlx_transformer import device
from mlx_transformer.decoding.batch import Hypothesis
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.scoring import score_pairs
from mlx_transformer.decoding.search import search
from mlx_transformer.model import Transformer
from mlx_transformer.selfcheck.finding import TOLERANCES, Finding, tolerance
from mlx_transformer.selfcheck.models import made_up, sentences

SENTENCES, LONGEST = 12, 12
BEAMS = {"greedy": 1, "beam 4": 4}
# Where products are rounded, near draws may fall otherwise: in at most this share of sentences.
DRAWS = 0.25


def cache() -> Iterator[Finding]:
    """A search sums up log-probabilities word by word, from its cache; scoring reads the sentence
    in one pass."""
    model, sources = _model(), sentences(_model(), SENTENCES, LONGEST)
    for name, beam in BEAMS.items():
        with device.as_gpu():
            found = _best(model, sources, beam)
            ends = [[*best.ids, *[model.config.eos_id] * best.complete] for best in found]
            scores = score_pairs(model, sources, ends)
        worst = max(
            abs(best.logp - score.logp) / score.tokens
            for best, score in zip(found, scores, strict=True)
        )
        yield Finding(f"search, cache of keys and values, {name}", worst, tolerance("float32"))


def ids() -> Iterator[Finding]:
    model, sources = _model(), sentences(_model(), SENTENCES, LONGEST)
    exact = tolerance("float32") == TOLERANCES["float32"]
    for name, beam in BEAMS.items():
        with device.reference():
            expected = _best(model, sources, beam)
        for how, compiling in (("compiled", nullcontext), ("not compiled", device.uncompiled)):
            with device.as_gpu(), compiling():
                found = _best(model, sources, beam)
            differ = sum(a.ids != b.ids for a, b in zip(found, expected, strict=True))
            title = f"search, sentences that differ, {name}, {how}"
            yield Finding(title, differ, 0 if exact else DRAWS * SENTENCES)


def _model() -> Transformer:
    return made_up(d_model=64, d_ff=128, decoder_layers=2, max_length=64)


def _best(model: Transformer, sources: list[list[int]], beam: int) -> list[Hypothesis]:
    options = SearchOptions(beam=beam, max_tokens=2 * LONGEST)
    return [best for best, *_ in search(model, sources, options)]
