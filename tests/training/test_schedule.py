"""Learning rates against the paper's numbers and the shapes they are named after."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.training import schedule
from mlx_transformer.training.schedule import make_schedule


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_the_paper_peaks_at_the_end_of_its_warmup(d_model, peak):
    rates = [schedule.paper(step, d_model, 4000) for step in range(1, 20_001)]
    assert np.argmax(rates) + 1 == 4000
    assert max(rates) == pytest.approx(peak, rel=1e-3)
    assert rates[0] == pytest.approx(d_model**-0.5 * 4000**-1.5)  # step 1, not step 0


def test_inverse_sqrt_is_the_papers_with_a_peak_of_ones_own():
    peak = schedule.paper(4000, 512, 4000)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        expected = schedule.paper(step, 512, 4000)
        assert schedule.inverse_sqrt(step, peak, 4000) == pytest.approx(expected)


def test_cosine_rises_in_a_line_and_falls_to_its_end():
    def rate(step):
        return schedule.cosine(step, 1.0, 100, 1100, low=0.1)

    assert rate(50) == pytest.approx(0.5)
    assert rate(100) == pytest.approx(1.0)
    assert rate(600) == pytest.approx(0.55)  # half way down
    assert rate(1100) == rate(5000) == pytest.approx(0.1)
    assert all(rate(step) > rate(step + 1) for step in range(100, 1100))


def test_constant_stays_after_its_warmup():
    assert schedule.constant(5, 0.3, 10) == pytest.approx(0.15)
    assert schedule.constant(10, 0.3, 10) == schedule.constant(9999, 0.3, 10) == 0.3


@pytest.mark.parametrize("name", ["inverse_sqrt", "cosine", "constant"])
def test_without_warmup_the_first_step_has_the_peak(name):
    config = TrainingConfig(schedule=name, learning_rate=0.5, warmup=0, max_steps=10_000)
    assert make_schedule(config, 512)(1) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("name", ["paper", "inverse_sqrt", "cosine", "constant"])
def test_arrays_and_numbers_agree(name):
    peak = None if name == "paper" else 1e-3
    config = TrainingConfig(schedule=name, learning_rate=peak, warmup=40, max_steps=200)
    rate = make_schedule(config, 64)
    steps = np.arange(1, 220)
    found = mx.compile(rate)(mx.array(steps.astype(np.float32)))
    assert np.allclose(found, [rate(int(step)) for step in steps], rtol=1e-4, atol=1e-9)
