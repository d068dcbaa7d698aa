"""The tool that makes a trained model larger."""

import grow
import mlx.core as mx
import pytest

from mlx_transformer import load
from mlx_transformer.config import preset
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import WEIGHTS, load_model

PAIRS = {
    "Where is the train station?": "Wo ist der Bahnhof?",
    "I read a book today.": "Ich habe heute ein Buch gelesen.",
    "The debate is closed.": "Die Aussprache ist geschlossen.",
}


def test_a_deeper_model_finds_translations_as_probable_as_before(tmp_path, monkeypatch):
    shipped, deeper = WEIGHTS / "en-de", tmp_path / "deeper"
    monkeypatch.setattr("sys.argv", ["grow.py", str(shipped), "--deeper", "--out", str(deeper)])
    assert grow.main() == 0
    before, after = (
        load(folder).score(list(PAIRS), list(PAIRS.values())) for folder in (shipped, deeper)
    )
    layers = load_model(shipped).config.encoder_layers
    assert load_model(deeper).config.encoder_layers == 2 * layers - 1
    for old, new in zip(before, after, strict=True):
        assert new.logp == pytest.approx(old.logp, rel=0.1)


def test_new_layers_can_learn():
    """What they add is zero, not their gradients."""
    ids = mx.array([[3, 4, 5]])
    model = grow.deepened(Transformer(preset("base", vocab_size=11, d_model=16, d_ff=32, h=2)))

    def loss(out: mx.array) -> mx.array:
        model.encoder.layers[1].self_attention.out.weight = out
        return (model(ids, ids) ** 2).sum()

    new = model.encoder.layers[1].self_attention.out.weight
    assert not new.any().item()
    assert mx.grad(loss)(new).any().item()


def test_a_pre_norm_model_is_refused():
    with pytest.raises(InputError, match="post-norm"):
        grow.deepened(
            Transformer(preset("base", vocab_size=11, d_model=16, d_ff=32, h=2, norm="pre"))
        )


def test_a_wider_model_computes_the_same():
    model = Transformer(preset("base", vocab_size=11, d_model=16, d_ff=32, h=2))
    wider, ids = grow.widened(model, 48), mx.array([[3, 4, 5]])
    assert wider.config.d_ff == wider.decoder.layers[0].feed_forward.w_1.weight.shape[0] == 48
    assert mx.allclose(wider(ids, ids), model(ids, ids), atol=1e-5)


def test_new_units_can_learn():
    """Their outputs are zero, not the gradients of these: the units are alive."""
    ids = mx.array([[3, 4, 5]])
    small = Transformer(preset("base", vocab_size=11, d_model=16, d_ff=32, h=2))
    model = grow.widened(small, 48)
    layer = model.encoder.layers[0].feed_forward.w_2

    def loss(outputs: mx.array) -> mx.array:
        layer.weight = outputs
        return (model(ids, ids) ** 2).sum()

    outputs = layer.weight
    assert not outputs[:, 32:].any().item()
    assert mx.grad(loss)(outputs)[:, 32:].any().item()


@pytest.mark.parametrize(("changes", "d_ff"), [({}, 32), ({"gated_feed_forward": True}, 48)])
def test_what_cannot_be_widened_is_refused(changes, d_ff):
    model = Transformer(preset("base", vocab_size=11, d_model=16, d_ff=32, h=2, **changes))
    with pytest.raises(InputError, match="wide"):
        grow.widened(model, d_ff)
