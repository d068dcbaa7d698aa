"""A look at the validation set: loss and perplexity of all of it, translations of some."""

import time
import warnings
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus
from mlx_transformer.data.metrics import Metric, measure
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import ValidationConfig
from mlx_transformer.training.loss import OutputLoss
from mlx_transformer.training.report import Sample, ValidationReport, number, perplexity

SAMPLES = 3
# What is reported with what a recipe is judged by; BLEU of single words would always be 0.
REPORTED: dict[Metric, tuple[Metric, ...]] = {
    "bleu": ("bleu", "chrf"),
    "chrf": ("bleu", "chrf"),
    "exact": ("exact", "chrf"),
}

# Source texts to translations, with the model as it is now.
Translate = Callable[[Transformer, Sequence[str]], list[str]]


class Validator:
    """Measures a model; sentences evenly spaced through the corpus are translated and judged."""

    def __init__(
        self,
        corpus: ParallelCorpus,
        batches: Batches,
        config: ValidationConfig,
        translate: Translate,
    ) -> None:
        self._corpus = corpus
        self._batches = batches
        self._translate = translate
        self._metric: Metric = config.metric
        count = min(config.sentences, len(corpus))
        self._chosen = np.linspace(0, len(corpus) - 1, count).round().astype(int).tolist()

    def __call__(self, model: Transformer, step: int) -> ValidationReport:
        start = time.perf_counter()
        loss, nll = self._loss(model)
        scores = self._scores(model) if self._chosen else {}
        seconds = time.perf_counter() - start
        return ValidationReport(step, loss, perplexity(nll), seconds, metric=self._metric, **scores)

    def _loss(self, model: Transformer) -> tuple[float, float]:
        """Label-smoothed loss and negative log-likelihood, means of a target token."""
        measure = OutputLoss(model.config)
        weight = model[model.config.output_matrix].weight
        bias = model.get("output_bias")
        sums = mx.zeros(3)
        with device.side_by_side(1):  # in training a lane has its share of the cores: take all
            for planned in self._batches.epoch(0):
                batch = self._batches.read(planned)
                hidden = model.hidden(mx.array(batch.source), mx.array(batch.target_in))
                expected = mx.array(batch.target_out).reshape(-1)
                loss = measure(hidden.reshape(-1, hidden.shape[-1]), weight, bias, expected)
                sums = sums + mx.stack(list(loss))
                mx.async_eval(sums)  # not waited for: the next batch is read meanwhile
            smoothed, nll, tokens = map(number, sums)
        return smoothed / tokens, nll / tokens

    def _scores(self, model: Transformer) -> dict:
        sources = [self._corpus.source_lines[i] for i in self._chosen]
        references = [self._corpus.target_lines[i] for i in self._chosen]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # early models often run into the length limit
            translations = self._translate(model, sources)
        scores = measure(REPORTED[self._metric], translations, references)
        rows = list(zip(sources, references, translations, strict=True))
        return {
            **{name: score for name, (score, _) in scores.items()},
            "signature": scores[self._metric][1],
            "samples": [Sample(*row) for row in rows[:: max(1, len(rows) // SAMPLES)][:SAMPLES]],
        }
