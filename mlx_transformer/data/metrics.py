"""How good translations are: sacrebleu's metrics, and how many are exactly right."""

from collections.abc import Iterable, Sequence
from typing import Literal

Metric = Literal["bleu", "chrf", "ter", "exact"]
TITLES: dict[Metric, str] = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER", "exact": "exact"}


def measure(
    metrics: Iterable[Metric], translations: Sequence[str], references: Sequence[str]
) -> dict[Metric, tuple[float, str]]:
    """By metric its value, from 0 to 100 (TER: 0 is best), and the signature to quote with it."""
    return {
        metric: exact_match(translations, references)
        if metric == "exact"
        else _sacrebleu(metric, translations, references)
        for metric in metrics
    }


def exact_match(translations: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Per cent of the translations that are their references, but for space around them."""
    right = sum(a.strip() == b.strip() for a, b in zip(translations, references, strict=True))
    return 100 * right / len(references), f"{right:,} of {len(references):,}"


def _sacrebleu(
    metric: Metric, translations: Sequence[str], references: Sequence[str]
) -> tuple[float, str]:
    from sacrebleu.metrics import BLEU, CHRF, TER

    judge = {"bleu": BLEU, "chrf": CHRF, "ter": TER}[metric]()
    score = judge.corpus_score([*translations], [[*references]]).score
    return score, str(judge.get_signature())
