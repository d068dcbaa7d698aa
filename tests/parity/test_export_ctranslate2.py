"""Models written for CTranslate2, loaded by CTranslate2."""

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest

from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.export_ctranslate2 import export_ctranslate2
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Search
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model
from tests.ctranslate2_models import write_model
from tests.decoding.random_models import random_model, random_source

MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"norm": "pre", "encoder_final_norm": True, "decoder_final_norm": True},
    "apart": {"shared_embeddings": False, "tied_output": False, "target_vocab_size": 15},
    "learned": {"positions": "learned", "position_offset": 2, "embedding_norm": True},
    "fairseq": {"position_offset": 2, "padding_has_position": False},
    "gated": {"gated_feed_forward": True, "feed_forward_bias": False, "activation": "gelu_sigmoid"},
    "rms": {"norm_kind": "rms", "norm": "pre", "attention_bias": False, "activation": "gelu"},
    "relative": {
        "positions": "relative",
        "relative_buckets": 8,
        "relative_distance": 6,
        "norm": "pre",
        "scale_attention": False,
        "norm_kind": "rms",
        "attention_bias": False,
        "d_k": 3,
        "d_v": 3,
    },
    "heads of their own size": {"d_k": 3, "d_v": 3},
    "from zero": {"start_id": None, "scale_embedding": False, "logit_scale": 0.7},
}


@pytest.mark.parametrize("name", MODELS)
def test_ctranslate2_writes_the_same_ids(tmp_path: Path, name: str) -> None:
    model = random_model(3, **{"output_bias": False, **MODELS[name]})
    export_ctranslate2(model, None, tmp_path)
    generator = np.random.default_rng(0)
    sources = [random_source(generator, model, n) for n in (1, 3, 5, 8)]
    search = Search(model, SearchOptions(beam=1, max_tokens=9))
    ours = [found[0].ids for found in search.each((s, []) for s in sources)]
    config = model.config
    theirs = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    never = sorted({config.pad_id, config.start_id} - {None, config.eos_id})
    found = theirs.translate_batch(
        [[word(i, model) for i in source[:-1]] for source in sources],
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=9,
        suppress_sequences=[[word(i, model)] for i in never],
    )
    assert [[word(i, model) for i in ids] for ids in ours] == [r.hypotheses[0] for r in found]


def word(i: int, model: Transformer) -> str:
    special = {model.config.eos_id: "</s>", model.config.pad_id: "<pad>"}
    return special.get(i, f"<unused {i}>")


def test_there_and_back_again(tmp_path: Path) -> None:
    """CTranslate2 -> ours -> CTranslate2: both load, and write the same."""
    first = write_model(tmp_path / "first", config={"add_source_eos": True}, pre_norm=False)
    convert(first, tmp_path / "ours")
    (tmp_path / "second").mkdir()
    export_ctranslate2(load_model(tmp_path / "ours"), None, tmp_path / "second")
    convert(tmp_path / "second", tmp_path / "again")
    weights = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("ours", "again")]
    assert weights[0] == weights[1]
    texts = np.random.default_rng(0).integers(4, 40, (5, 6)).tolist()
    names = [lambda i: f"w{i - 3}", lambda i: f"<unused {i}>"]
    outputs = []
    for directory, word in zip(("first", "second"), names, strict=True):
        theirs = ctranslate2.Translator(str(tmp_path / directory), intra_threads=1)
        found = theirs.translate_batch(
            [[word(i) for i in text] for text in texts], beam_size=2, max_decoding_length=8
        )
        outputs.append([result.hypotheses[0] for result in found])
    ids = {names[1](i): names[0](i) for i in range(3, 43)}
    assert [[ids.get(w, w) for w in words] for words in outputs[1]] == outputs[0]


def test_what_ctranslate2_cannot_express_is_said(tmp_path: Path) -> None:
    for settings in (
        {"decoder_cell": "ssru"},
        {"d_k": 3},
        {"positions": "relative", "relative_per_layer": True},
        {"padding_has_position": False, "start_id": None},
    ):
        with pytest.raises(InputError, match="CTranslate2 cannot express"):
            export_ctranslate2(random_model(0, **settings), None, tmp_path)
