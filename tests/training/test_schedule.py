"""Learning rates against the paper's numbers and the shapes they are named after."""

import math

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.training import schedule
from mlx_transformer.training.schedule import Schedule, make_schedule


def at(step: float, rate: Schedule, *settings: float) -> float:
    """The rate of one step"""
    return rate(mx.array(float(step)), *settings).item()


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_the_paper_peaks_at_the_end_of_its_warmup(d_model, peak):
    rates = np.array(schedule.paper(mx.arange(1.0, 20_001), d_model, 4000))
    assert np.argmax(rates) + 1 == 4000
    assert max(rates) == pytest.approx(peak, rel=1e-3)
    assert rates[0] == pytest.approx(d_model**-0.5 * 4000**-1.5)  # step 1, not step 0


def test_inverse_sqrt_is_the_papers_with_a_peak_of_ones_own():
    peak = at(4000, schedule.paper, 512, 4000)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        expected = at(step, schedule.paper, 512, 4000)
        assert at(step, schedule.inverse_sqrt, peak, 4000) == pytest.approx(expected)


def test_cosine_rises_in_a_line_and_falls_to_its_end():
    def rate(step):
        return at(step, schedule.cosine, 1.0, 100, 1100, 0.1)

    assert rate(50) == pytest.approx(0.5)
    assert rate(100) == pytest.approx(1.0)
    assert rate(600) == pytest.approx(0.55)  # half way down
    assert rate(1100) == rate(5000) == pytest.approx(0.1)
    assert all(rate(step) > rate(step + 1) for step in range(100, 1100))


def test_constant_stays_after_its_warmup():
    assert at(5, schedule.constant, 0.3, 10) == pytest.approx(0.15)
    level = [at(step, schedule.constant, 0.3, 10) for step in (10, 9999)]
    assert level == [np.float32(0.3)] * 2


@pytest.mark.parametrize("name", ["inverse_sqrt", "cosine", "constant"])
def test_without_warmup_the_first_step_has_the_peak(name):
    config = TrainingConfig(schedule=name, learning_rate=0.5, warmup=0, max_steps=10_000)
    assert at(1, make_schedule(config, 512)) == pytest.approx(0.5, rel=1e-6)


FORMULAS = {  # of 40 steps of warmup, 200 in all
    "paper": lambda step: 64**-0.5 * min(step**-0.5, step * 40**-1.5),
    "inverse_sqrt": lambda step: 1e-3 * min((step / 40) ** -0.5, step / 40),
    "cosine": lambda step: (
        1e-3 * min(step / 40, 1) * (1 + math.cos(math.pi * min(max((step - 40) / 160, 0), 1))) / 2
    ),
    "constant": lambda step: 1e-3 * min(step / 40, 1),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_compiled_schedule_of_a_recipe_is_its_formula(name):
    peak = None if name == "paper" else 1e-3
    config = TrainingConfig(schedule=name, learning_rate=peak, warmup=40, max_steps=200)
    steps = np.arange(1, 220)
    found = mx.compile(make_schedule(config, 64))(mx.array(steps.astype(np.float32)))
    expected = [FORMULAS[name](int(step)) for step in steps]
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-9)
