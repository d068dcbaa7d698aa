"""What goes out comes back bit for bit, without PyTorch; what cannot go out says why."""

import json
from dataclasses import replace

import mlx.core as mx
import pytest
from sentencepiece import SentencePieceProcessor

from mlx_transformer.__main__ import main
from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.export import float32_weights
from mlx_transformer.convert.export_ctranslate2 import export_ctranslate2
from mlx_transformer.convert.export_marian import export_marian
from mlx_transformer.convert.export_torch import export_torch
from mlx_transformer.convert.family import Options
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model, named_parameters, quantize, save_model
from mlx_transformer.tokenizer import load_tokenizer
from tests import tiny_directory

PAPER = ModelConfig(
    vocab_size=90, encoder_layers=2, decoder_layers=1, d_model=64, d_ff=128, h=4, max_length=32
)
# Nothing in a PyTorch checkpoint tells these.
UNSEEN = ("h", "norm", "norm_eps", "activation", "scale_embedding", "dropout", "label_smoothing",
          "pad_id", "start_id", "eos_id", "logit_scale", "position_offset")  # fmt: skip


def make(config: ModelConfig, seed: int = 0) -> Transformer:
    mx.random.seed(seed)
    model = Transformer(config)
    model.update({"source_words": {"weight": mx.random.normal((config.vocab_size, 64))}})
    if config.output_bias:  # a conversion leaves out one of zeros
        model.output_bias = mx.random.normal((config.target_size,))
    return model


def assert_bit_equal(a: dict[str, mx.array], b: dict[str, mx.array]) -> None:
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert mx.array_equal(array, b[name]), name


@pytest.mark.parametrize(
    "config",
    [
        PAPER,
        replace(PAPER, norm="pre", encoder_final_norm=True, decoder_final_norm=True),
        replace(PAPER, shared_embeddings=False, target_vocab_size=70, output_bias=True),
        replace(PAPER, shared_embeddings=False, tied_output=False, positions="learned"),
        replace(PAPER, embedding_norm=True),
    ],
    ids=["paper", "pre-norm", "two vocabularies", "untied", "a norm on embeddings"],
)
def test_torch_and_back(config, tmp_path):
    model = make(config)
    (tmp_path / "torch").mkdir()
    export_torch(model, tmp_path / "torch")
    settings = {name: getattr(config, name) for name in UNSEEN}
    convert(tmp_path / "torch" / "model.pt", tmp_path / "back", Options(settings=settings))
    back = load_model(tmp_path / "back")
    assert back.config == config
    assert_bit_equal(named_parameters(back), named_parameters(model))


def test_a_directory_for_torch_comes_back_without_flags(tmp_path):
    """The config beside the weights says what they do not."""
    model = make(replace(PAPER, logit_scale=0.5, padding_has_position=False, pad_id=3))
    (tmp_path / "torch").mkdir()
    export_torch(model, tmp_path / "torch")
    convert(tmp_path / "torch", tmp_path / "back")
    source, target = mx.array([[5, 6, 2]]), mx.array([[1, 7, 3, 8]])
    assert mx.array_equal(load_model(tmp_path / "back")(source, target), model(source, target))


def test_marian_and_back(tmp_path):
    """A model laid out as OPUS-MT's comes back as it was, config and all."""
    config = replace(
        PAPER, pad_id=89, start_id=89, position_layout="halves", output_bias=True,
        activation="swish",
    )  # fmt: skip
    model = make(config)
    model.source_words.weight[89] = 0
    (tmp_path / "marian").mkdir()
    export_marian(model, None, tmp_path / "marian")
    convert(tmp_path / "marian", tmp_path / "back")
    back = load_model(tmp_path / "back")
    assert back.config == config
    assert_bit_equal(named_parameters(back), named_parameters(model))


def test_marian_files_and_back(tmp_path):
    """The tokenizer of an OPUS-MT model, language tags and all, goes out as it came in."""
    pieces = SentencePieceProcessor(model_proto=tiny_directory.pieces())
    words = [pieces.id_to_piece(i) for i in range(4, 90 - 5)]
    vocab = {w: i for i, w in enumerate(["</s>", "<unk>", ">>de<<", ">>fr<<", *words, "<pad>"])}
    last = len(vocab) - 1
    files = {
        "source.spm": tiny_directory.pieces(),
        "target.spm": tiny_directory.pieces(),
        "vocab.json": json.dumps(vocab).encode(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    config = replace(
        PAPER, vocab_size=last + 1, target_vocab_size=None, pad_id=last, start_id=last, eos_id=0
    )
    model = make(config)
    model.source_words.weight[last] = 0
    (tmp_path / "marian").mkdir()
    export_marian(model, load_tokenizer(tmp_path), tmp_path / "marian")
    written = {name: (tmp_path / "marian" / name).read_bytes() for name in files}
    assert json.loads(written.pop("vocab.json")) == vocab
    assert all(content == files[name] for name, content in written.items())


@pytest.mark.parametrize("start_id", [1, 2, None])
def test_a_model_with_a_start_vector_comes_back_from_marian_computing_the_same(start_id, tmp_path):
    model = make(replace(PAPER, start_id=start_id))
    (tmp_path / "marian").mkdir()
    export_marian(model, None, tmp_path / "marian")
    convert(tmp_path / "marian", tmp_path / "back")
    back = load_model(tmp_path / "back")
    source = mx.random.randint(4, 90, (5, 8))
    target = mx.random.randint(4, 90, (5, 6))
    target[:, 0] = start_id or 0
    ours = model(source, target)
    target[:, 0] = back.config.start_id
    assert mx.array_equal(back(source, target)[..., :90], ours)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_goes_out_exactly(dtype, tmp_path):
    model = make(PAPER)
    model.set_dtype(dtype)
    export_torch(model, tmp_path)
    settings = {name: getattr(PAPER, name) for name in UNSEEN}
    name = str(dtype).removeprefix("mlx.core.")
    convert(tmp_path / "model.pt", tmp_path / "back", Options(settings=settings), dtype=name)
    assert_bit_equal(named_parameters(load_model(tmp_path / "back")), named_parameters(model))


def test_a_quantised_model_goes_out_as_the_numbers_it_computes_with():
    model = make(PAPER)
    quantize(model, 8)
    weights = float32_weights(model)
    assert weights.keys() == named_parameters(Transformer(PAPER)).keys()
    # The quantised embedding looks its rows up dequantised: an independent way to the same numbers.
    assert mx.array_equal(weights["source_words.weight"], model.source_words(mx.arange(90)))
    x = mx.random.normal((3, 64))
    layer = model.encoder.layers[0].feed_forward.w_1
    product = x @ weights["encoder.layers.0.feed_forward.w_1.weight"].T + layer.bias
    assert mx.allclose(product, layer(x), atol=1e-4)


@pytest.mark.parametrize(
    ("export", "change", "sentence"),
    [
        (export_torch, {"d_k": 32}, "torch.nn.Transformer cannot express d_k 32: it must be"),
        (export_torch, {"d_v": 8}, "torch.nn.Transformer cannot express d_v 8"),
        (export_torch, {"encoder_layers": 0}, "but this model is the decoder alone"),
        (export_marian, {"encoder_layers": 0}, "but this model is the decoder alone"),
        (export_ctranslate2, {"decoder_layers": 0}, "but this model is the encoder alone"),
        (export_marian, {"d_k": 32}, "a Marian model cannot express d_k 32"),
        (export_marian, {"norm": "pre"}, "cannot express norm 'pre': it must be 'post'"),
        (export_marian, {"encoder_final_norm": True}, "cannot express encoder_final_norm True"),
        (export_marian, {"decoder_final_norm": True}, "cannot express decoder_final_norm True"),
        (export_marian, {"embedding_norm": True}, "cannot express embedding_norm True"),
        (export_marian, {"norm_eps": 1e-6}, "cannot express norm_eps 1e-06: it must be 1e-05"),
        (export_marian, {"logit_scale": 0.5}, "cannot express logit_scale 0.5"),
        (
            export_marian,
            {"padding_has_position": False, "start_id": None},
            "cannot express padding_has_position False where the decoder begins with padding",
        ),
    ],
)
def test_what_cannot_be_expressed_is_named(export, change, sentence, tmp_path):
    model = Transformer(replace(PAPER, **change))
    with pytest.raises(InputError, match=sentence):
        export(model, tmp_path) if export is export_torch else export(model, None, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    save_model(make(PAPER), tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--format"]
    assert main([*arguments, "marian"]) == 0
    assert "has no tokenizer" in capsys.readouterr().err
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "marian" and config["vocab_size"] == 91

    assert main([*arguments, "torch"]) == 2  # nothing is overwritten
    assert "exists: name a directory" in capsys.readouterr().err
    arguments[2] += "2"
    assert main([*arguments, "torch"]) == 0
    assert {path.name for path in (tmp_path / "out2").iterdir()} == {
        "model.pt", "config.json", "load_in_torch.py",
    }  # fmt: skip
