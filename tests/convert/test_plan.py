"""Names: prefixes, renaming, what is found by shape, and that nothing is dropped in silence."""

import argparse
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn

from mlx_transformer.convert.conversion import convert, list_keys
from mlx_transformer.convert.family import Options
from mlx_transformer.convert.positions import recognise_sinusoids
from mlx_transformer.convert.tensors import LazyTensor, Storage
from mlx_transformer.errors import InputError
from mlx_transformer.storage import load_model, named_parameters
from tests.parity import test_convert_projects as projects
from tests.parity.conversion_checks import randomly, sinusoids
from tests.parity.test_convert_fairseq import arguments, shapes

SETTINGS = {"h": 2, "pad_id": 0, "start_id": 1, "eos_id": 2}


def model(**modules: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    modules = {"transformer": nn.Transformer(8, 2, 1, 1, 12, batch_first=True), **modules}
    return nn.ModuleDict(modules).state_dict()


def save(state: dict[str, torch.Tensor], folder: Path) -> Path:
    torch.save(state, folder / "a.pt")
    return folder / "a.pt"


def converted(state: dict[str, torch.Tensor], folder: Path, **options: object):
    convert(save(state, folder), folder / "out", Options(settings=SETTINGS, **options))
    return load_model(folder / "out")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module.model."])
def test_prefixes_are_dropped(tmp_path: Path, prefix: str) -> None:
    state = model(embedding=nn.Embedding(9, 8))
    found = converted({prefix + name: values for name, values in state.items()}, tmp_path)
    assert np.array_equal(np.array(found.source_words.weight), state["embedding.weight"])
    assert found.config.shared_embeddings and found.config.tied_output


def test_one_embedding_and_a_head_with_a_bias(tmp_path: Path) -> None:
    state = model(tokens=nn.Embedding(9, 8), fc=nn.Linear(8, 9))
    found = converted(state, tmp_path)
    assert found.config.shared_embeddings and not found.config.tied_output
    assert np.array_equal(np.array(found.output.weight), state["fc.weight"])
    assert np.array_equal(np.array(found.output_bias), state["fc.bias"])


def test_embeddings_that_are_plain_parameters(tmp_path: Path) -> None:
    state = model() | randomly({"src_vectors": (9, 8), "tgt_vectors": (11, 8), "out": (11, 8)})
    found = converted(state, tmp_path, output="out")
    assert np.array_equal(np.array(found.source_words.weight), state["src_vectors"])
    assert np.array_equal(np.array(found.output.weight), state["out"])
    assert not found.config.output_bias


def test_equal_matrices_are_stored_once(tmp_path: Path) -> None:
    state = model(src_emb=nn.Embedding(9, 8), tgt_emb=nn.Embedding(9, 8), head=nn.Linear(8, 9))
    state["tgt_emb.weight"] = state["src_emb.weight"].clone()
    state["head.weight"] = state["src_emb.weight"].clone()
    config = converted(state, tmp_path).config
    assert config.shared_embeddings and config.tied_output and config.output_bias


def test_options_settle_what_names_do_not(tmp_path: Path) -> None:
    state = model(emb_a=nn.Embedding(9, 8), emb_b=nn.Embedding(9, 8), emb_c=nn.Embedding(30, 8))
    with pytest.raises(InputError, match=r"which of .*emb_a\.weight.*source embedding\?"):
        converted(state, tmp_path)
    found = converted(
        state,
        tmp_path,
        source_embedding="emb_b.weight",
        target_embedding="emb_a.weight",
        positions="emb_c.weight",
    )
    assert np.array_equal(np.array(found.source_words.weight), state["emb_b.weight"])
    assert np.array_equal(np.array(found.target_words.weight), state["emb_a.weight"])
    assert np.array_equal(np.array(found.source_embedding.positions), state["emb_c.weight"])
    assert found.config.positions == "learned" and found.config.max_length == 30
    with pytest.raises(InputError, match=r"no key 'nothing\.weight'"):
        convert(tmp_path / "a.pt", tmp_path / "x", Options(output="nothing.weight"))


def test_renaming(tmp_path: Path) -> None:
    state = model(embedding=nn.Embedding(9, 8))
    mine = {name.replace("linear1", "up").replace("encoder", "enc"): v for name, v in state.items()}
    with pytest.raises(InputError, match="of no family we know"):
        converted(mine, tmp_path)
    found = converted(mine, tmp_path, renames=((r"\benc\.", "encoder."), (r"\bup\b", "linear1")))
    weight = named_parameters(found)["encoder.layers.0.feed_forward.w_1.weight"]
    assert np.array_equal(np.array(weight), state["transformer.encoder.layers.0.linear1.weight"])
    for renames, problem in [((("(", ""),), "renaming"), (((".*", "x"),), "one name")]:
        listing = list_keys(tmp_path / "a.pt", Options(renames=renames), family="torch")
        assert problem in str(listing.problem)
        with pytest.raises(InputError, match=problem):
            convert(tmp_path / "a.pt", tmp_path / "y", Options(renames=renames))


def test_keys_without_use_are_named(tmp_path: Path) -> None:
    state = model(embedding=nn.Embedding(9, 8))
    state["transformer.adapter.weight"] = torch.ones(3)
    state["transformer.decoder.layers.7.norm1.weight"] = torch.ones(8)
    with pytest.raises(InputError, match=r"'transformer\.adapter\.weight' is not used"):
        converted(state, tmp_path)
    assert not (tmp_path / "out").exists()
    listing = list_keys(tmp_path / "a.pt", Options(settings=SETTINGS))
    unused = {key.name for key in listing.keys if not key.use}
    assert unused == {"transformer.adapter.weight", "transformer.decoder.layers.7.norm1.weight"}
    assert "is not used" in str(listing.problem)


def test_an_embedding_of_another_name_is_told_how_to_rename(tmp_path: Path) -> None:
    state = shapes()
    state["source_vectors.weight"] = state.pop("encoder.embed_tokens.weight")
    torch.save({"model": state, "args": arguments()}, tmp_path / "a.pt")
    said = r"no encoder\.embed_tokens\.weight for .* no use is known for 'source_vectors\.weight'"
    with pytest.raises(InputError, match=said) as refused:
        convert(tmp_path / "a.pt", tmp_path / "out")
    assert refused.value.options == ("list", "rename")
    renames = ((r"^source_vectors", "encoder.embed_tokens"),)
    convert(tmp_path / "a.pt", tmp_path / "out", Options(renames=renames))


def test_missing_keys_are_named(tmp_path: Path) -> None:
    state = model(embedding=nn.Embedding(9, 8))
    del state["transformer.decoder.layers.0.norm3.weight"]
    expected = r"no decoder\.layers\.0\.norm3\.weight for decoder\.layers\.0\.feed_forward_norm"
    with pytest.raises(InputError, match=expected):
        converted(state, tmp_path)


def test_wrong_shapes_are_named(tmp_path: Path) -> None:
    state = model(embedding=nn.Embedding(9, 8))
    state["transformer.decoder.layers.0.linear2.weight"] = torch.ones(8, 13)
    with pytest.raises(
        InputError, match=r"should be \(8, 12\), but .*linear2\.weight make \(8, 13\)"
    ):
        converted(state, tmp_path)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    state = model(embedding=nn.Embedding(9, 8))
    name = "transformer.encoder.layers.0.linear1.weight"
    state[name] = state[name].to(torch.int8)
    with pytest.raises(InputError, match="is int8"):
        converted(state, tmp_path)


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_precision(tmp_path: Path, stored: torch.dtype, dtype: str | None) -> None:
    state = {name: v.to(stored) for name, v in model(embedding=nn.Embedding(9, 8)).items()}
    report = convert(
        save(state, tmp_path), tmp_path / "out", Options(settings=SETTINGS), dtype=dtype
    )
    kept = {"float64": "float32"}.get(name := str(stored).removeprefix("torch."), name)
    assert report.dtypes == (dtype or kept,)
    array = load_model(tmp_path / "out").source_words.weight
    assert str(array.dtype) == f"mlx.core.{dtype or kept}"
    expected = state["embedding.weight"].to(getattr(torch, dtype or kept)).float()
    assert np.array_equal(np.array(array.astype(mx.float32)), expected)


def test_directories_are_not_overwritten(tmp_path: Path) -> None:
    path, options = save(model(embedding=nn.Embedding(9, 8)), tmp_path), Options(settings=SETTINGS)
    out = tmp_path / "deep" / "out"
    convert(path, out, options)
    assert [p.name for p in out.parent.iterdir()] == ["out"]  # nothing is left beside it
    with pytest.raises(InputError, match="exists: give another name"):
        convert(path, out, options)
    (out / "note").write_text("old")
    convert(path, out, options, force=True)
    assert {p.name for p in out.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not a model directory"):
        convert(path, precious, options, force=True)
    assert (precious / "letter.txt").read_text() == "dear"


def test_a_failed_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(model(embedding=nn.Embedding(9, 8)), tmp_path)
    monkeypatch.setattr("mlx_transformer.convert.conversion._card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        convert(path, tmp_path / "here" / "out", Options(settings=SETTINGS))
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("divisor", [8, 7])
def test_sinusoids_are_recognised(tmp_path: Path, halves: bool, divisor: int) -> None:
    table = sinusoids(700, 16, halves=halves, divisor=divisor).numpy()
    found = recognise_sinusoids(lazy(table, tmp_path))
    assert found == {
        "position_layout": "halves" if halves else "interleaved",
        "position_divisor_minus_one": divisor == 7,
    }
    table[1] = 0  # a row for padding
    assert recognise_sinusoids(lazy(table, tmp_path)) == found
    table[500, 3] += 0.1
    assert recognise_sinusoids(lazy(table, tmp_path)) is None
    assert recognise_sinusoids(lazy(np.zeros_like(table), tmp_path)) is None


def lazy(values: np.ndarray, folder: Path) -> LazyTensor:
    (folder / "table").write_bytes(values.tobytes())
    return LazyTensor.contiguous(
        Storage(folder / "table", values.nbytes, 0), "float32", values.shape
    )


NONSENSE = ["x", -1, 0, 10**12, 2.5, [], {}, (1,), True, b"x", float("nan"), torch.ones(2)]


@pytest.mark.slow
@pytest.mark.parametrize("field", sorted(vars(arguments())))
def test_settings_may_be_nonsense(tmp_path: Path, field: str) -> None:
    """A file can claim anything about itself: the answer is a plan or a sentence."""
    state = shapes()
    for value in NONSENSE:
        args = argparse.Namespace(**(vars(arguments()) | {field: value}))
        torch.save({"args": args, "model": state}, tmp_path / "a.pt")
        listing = list_keys(tmp_path / "a.pt")
        assert len(listing.keys) == len(state)
        assert listing.family == "a fairseq Transformer"


def every_family() -> dict[str, tuple[dict[str, torch.Tensor], dict[str, object]]]:
    """A complete state dict of each family, and what its checkpoints say beside it."""
    opt = argparse.Namespace(heads=4, position_encoding=True)
    generator = randomly({"generator.weight": (48, 32), "generator.bias": (48,)})
    return {
        "torch": (model(emb=nn.Embedding(9, 8), head=nn.Linear(8, 9), pos=nn.Embedding(5, 8)), {}),
        "fairseq": (shapes(learned=True, embedding_norm=True), {"args": arguments()}),
        "annotated": (projects.annotated_state(), {}),
        "jadore": (
            projects.jadore_state(tied=True),
            {"settings": argparse.Namespace(n_head=4)},
        ),
        "opennmt": (projects.opennmt_state(bias=True) | generator, {"opt": opt}),
        "marian-npz": (projects.marian_state(pre_norm=True, tied_all=False), {}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", every_family())
def test_tensors_may_be_nonsense(tmp_path: Path, name: str) -> None:
    """No tensor, or an odd one, in the place of any: the answer is always a sentence."""
    state, said = every_family()[name]
    if name == "marian-npz":
        text = torch.frombuffer(bytearray(b"transformer-preprocess: n\n\0"), dtype=torch.int8)
        state["special:model.yml"] = text
    options = Options(settings=SETTINGS | {"h": 4 if name != "torch" else 2})
    convert(save({"model": state, **said}, tmp_path), tmp_path / "whole", options)
    odd = [
        torch.ones(()),
        torch.ones(0),
        torch.ones(3),
        torch.ones(1, 2, 3),
        torch.ones(2, 0),
        None,
    ]
    keys = [key for key in state if not re.search(r"(layers|stack|transformer)\.[12]|_l[23]", key)]
    for i, key in enumerate(keys):
        changed = {k: v for k, v in state.items() if k != key}
        values = odd[i % len(odd)]
        path = save(
            {"model": changed | ({} if values is None else {key: values}), **said}, tmp_path
        )
        list_keys(path, options)
        try:
            convert(path, tmp_path / "out", options, force=True)
        except InputError as error:
            assert str(error)


def test_zeros_take_the_precision_of_the_rest(tmp_path: Path) -> None:
    plain = nn.Transformer(8, 2, 1, 1, 12, batch_first=True, bias=False)
    parts = nn.ModuleDict({"t": plain, "emb": nn.Embedding(9, 8)}).half()
    path = save(parts.state_dict(), tmp_path)
    assert convert(path, tmp_path / "out", Options(settings=SETTINGS)).dtypes == ("float16",)
