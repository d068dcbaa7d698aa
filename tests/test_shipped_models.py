"""The models that ship keep what a reader misses first: names, dates and amounts."""

import pytest

from mlx_transformer import load
from mlx_transformer.storage import shipped_models
from tests.survivors import probes, share_kept


@pytest.mark.slow
@pytest.mark.parametrize("model", shipped_models(), ids=lambda path: path.name)
def test_names_and_numbers_survive(model):
    made = probes(500, language=model.name[:2])
    texts = [translation.text for translation in load(model).translate([p.source for p in made])]
    assert share_kept(texts, made) > 0.85


def test_a_lost_name_counts():
    made = probes(10)
    copied = [" ".join(probe.kept) for probe in made]
    assert share_kept(copied, made) == 1
    assert share_kept(["", *copied[1:]], made) < 1
