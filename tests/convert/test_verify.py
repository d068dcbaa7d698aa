"""A certificate is given where the conversion is right, and refused where it is not."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers

from mlx_transformer import device
from mlx_transformer.__main__ import main
from mlx_transformer.convert import verify as verify_module
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.export_marian import export_marian
from mlx_transformer.convert.family import Options
from mlx_transformer.convert.verify import Certificate, verify
from mlx_transformer.errors import RunError
from mlx_transformer.storage import load_model, save_model
from tests.parity import test_convert_fairseq as fairseq
from tests.parity import test_convert_projects as projects
from tests.parity import test_convert_torch as users
from tests.parity import test_convert_transformers as hugging_face
from tests.tiny_directory import write_model

torch.set_num_threads(1)  # these matrices are too small to share


def save_marian(folder: Path) -> None:
    hugging_face.marian().save_pretrained(folder)


def save_fsmt(folder: Path) -> None:
    torch.manual_seed(0)
    config = hugging_face.FSMTConfig(
        **hugging_face.SIZES, langs=["en", "de"], src_vocab_size=40, tgt_vocab_size=48,
        init_std=0.2, activation_function="relu", tie_word_embeddings=False,
    )  # fmt: skip
    model = hugging_face.FSMTForConditionalGeneration(config)
    hugging_face.shaken(model).save_pretrained(folder)


def save_torch(folder: Path, **settings) -> None:
    torch.save(users.Translator(**settings).state_dict(), folder / "model.pt")


def save_fairseq(folder: Path, packed: bool = False, **settings) -> None:
    state = fairseq.shapes(**settings)
    state = fairseq.packed(state) if packed else state
    pre = settings.get("pre_norm", False)
    args = fairseq.arguments(encoder_normalize_before=pre, decoder_normalize_before=pre)
    torch.save(fairseq.checkpoint(state, args, new=not packed), folder / "checkpoint_best.pt")


def save_annotated(folder: Path) -> None:
    torch.save(projects.annotated_state(), folder / "model.pt")


def save_jadore(folder: Path) -> None:
    settings = argparse.Namespace(n_head=projects.H, src_pad_idx=1, scale_emb_or_prj="prj")
    model = projects.jadore_state(tied=True)
    torch.save({"settings": settings, "model": model}, folder / "model.pt")


def save_opennmt(folder: Path, old: bool) -> None:
    state = projects.opennmt_state(bias=old, old_norms=old)
    generator = projects.randomly({"weight": (48, 32), "bias": (48,)}, seed=5)
    if old:
        generator = {f"0.{name}": values for name, values in generator.items()}
    vocab = {"src": projects.WORDS + list("abcdef"), "tgt": projects.WORDS + list("abcdef")}
    opt = argparse.Namespace(heads=projects.H, position_encoding=True)
    checkpoint = {"model": state, "generator": generator, "vocab": vocab, "opt": opt}
    torch.save(checkpoint, folder / "model.pt")


def save_marian_npz(folder: Path, pre_norm: bool) -> None:
    state = projects.marian_state(pre_norm=pre_norm, tied_all=not pre_norm)
    text = f"transformer-heads: {projects.H}\ntransformer-preprocess: {'n' if pre_norm else ''}\n"
    text += f"transformer-postprocess: {'da' if pre_norm else 'dan'}\n"
    arrays = {name: values.numpy() for name, values in state.items()}
    config = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(folder / "model.npz", **arrays, **{"special:model.yml": config})


CHECKPOINTS = {
    "marian": (save_marian, {}, {}),
    "fsmt": (save_fsmt, {}, {}),
    "torch": (save_torch, {}, users.IDS),
    "torch, pre-norm": (
        save_torch,
        {"norm_first": True, "activation": "gelu"},
        users.IDS | {"norm": "pre", "activation": "gelu"},
    ),
    "torch, learned, tied": (save_torch, {"learned": True, "tied": True}, users.IDS),
    "torch, no bias": (save_torch, {"bias": False}, users.IDS),
    "fairseq": (save_fairseq, {"shared": True, "tied": True, "pre_norm": True}, {}),
    "fairseq, learned": (save_fairseq, {"learned": True, "embedding_norm": True}, {}),
    "fairseq of 2018": (save_fairseq, {"packed": True}, {}),
    "annotated": (save_annotated, {}, {"h": projects.H}),
    "jadore": (save_jadore, {}, {}),
    "opennmt": (save_opennmt, {"old": False}, {}),
    "opennmt 2": (save_opennmt, {"old": True}, {}),
    "marian-npz": (save_marian_npz, {"pre_norm": False}, {}),
    "marian-npz, pre-norm": (save_marian_npz, {"pre_norm": True}, {}),
}


@pytest.mark.parametrize(("save", "arguments", "settings"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_every_family_is_certified(save, arguments, settings, tmp_path):
    folder, out = tmp_path / "original", tmp_path / "out"
    folder.mkdir()
    save(folder, **arguments)
    options = Options(settings=settings)
    report = convert(folder, out, options)
    certificate = verify(folder, out, options)
    assert certificate.holds
    assert certificate.relative < 1e-5
    assert certificate.random == (32, 32)
    assert (out / "PARITY.md").read_text() == certificate.text("out")
    assert (report.family in certificate.original) or report.family in ("marian", "fsmt", "torch")


def certify_changed(name: str, tmp_path: Path, change) -> Certificate:
    """The certificate of a model in which one array is not what it should be."""
    folder, out = tmp_path / "original", tmp_path / "out"
    folder.mkdir()
    save, arguments, settings = CHECKPOINTS[name]
    save(folder, **arguments)
    options = Options(settings=settings)
    convert(folder, out, options)
    model = load_model(out)
    change(model)
    mx.eval(model.parameters())
    save_model(model, out)
    return verify(folder, out, options)


def swap_queries_and_keys(model) -> None:
    matrix = model.decoder.layers[0].self_attention.qkv
    q, k, v = mx.split(matrix.weight, 3)
    matrix.weight = mx.concatenate([k, q, v])


def forget_a_bias(model) -> None:
    model.encoder.layers[1].feed_forward.w_2.bias[0] += 0.01


@pytest.mark.parametrize("change", [swap_queries_and_keys, forget_a_bias])
@pytest.mark.parametrize("name", ["marian", "torch", "fairseq", "annotated"])
def test_a_mistake_is_not_certified(name, change, tmp_path):
    certificate = certify_changed(name, tmp_path, change)
    assert not certificate.holds
    assert "DOES NOT COMPUTE" in certificate.text("out")


@pytest.mark.slow
def test_less_precision_is_certified_with_its_figures(tmp_path):
    source = write_model_of_width_64(tmp_path / "model")
    relative = {}
    for name, dtype, bits in (
        ("float32", None, None),
        ("float16", "float16", None),
        ("8 bits", None, 8),
        ("4 bits", None, 4),
    ):
        convert(source, tmp_path / name, dtype=dtype, bits=bits)
        certificate = verify(source, tmp_path / name, Options())
        assert certificate.precision == name
        assert certificate.holds
        assert certificate.sentences[1] == 8
        relative[name] = certificate.relative
    assert relative["float32"] == 0
    assert 0 < relative["float16"] < relative["8 bits"] < relative["4 bits"]


def write_model_of_width_64(folder: Path) -> Path:
    folder.mkdir()
    return write_model(folder, d_model=64, d_ff=128, encoder_layers=1, decoder_layers=1)


def test_the_command_prints_and_keeps_the_certificate(tmp_path, capsys):
    from mlx_transformer.tokenizer import load_tokenizer

    source = write_model_of_width_64(tmp_path / "model")
    (tmp_path / "marian").mkdir()
    export_marian(load_model(source), load_tokenizer(source), tmp_path / "marian")
    out = tmp_path / "out"
    assert main(["convert", str(tmp_path / "marian"), str(out), "--verify"]) == 0
    printed = capsys.readouterr().out
    assert "The converted model computes what the original computes." in printed
    assert "`MarianMTModel` of transformers" in printed
    assert "greedy ids, sentences | 8 of 8 equal" in printed
    assert (out / "PARITY.md").read_text() in printed


def test_what_is_replaced_cannot_be_compared(tmp_path, capsys):
    source = str(write_model_of_width_64(tmp_path / "model"))
    assert main(["convert", source, source, "--force", "--quantize", "8", "--verify"]) == 2
    assert "do not replace it" in capsys.readouterr().err
    assert load_model(tmp_path / "model").config.quantization is None


@pytest.mark.parametrize(("name", "package"), [("torch", "torch"), ("marian", "transformers")])
def test_without_the_framework_it_says_how_to_get_it(name, package, tmp_path, monkeypatch):
    folder, out = tmp_path / "original", tmp_path / "out"
    folder.mkdir()
    save, arguments, settings = CHECKPOINTS[name]
    save(folder, **arguments)
    options = Options(settings=settings)
    convert(folder, out, options)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(RunError, match=f'{package} is not installed: pip install "{package}'):
        verify(folder, out, options)


def test_what_transformers_cannot_load_is_said(tmp_path):
    config = transformers.T5Config(
        vocab_size=40, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    folder, out = tmp_path / "t5", tmp_path / "out"
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    options = Options(settings={"h": 2, "pad_id": 0, "start_id": 0, "eos_id": 1})
    convert(folder, out, options)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    with pytest.raises(RunError, match=r"not verified: transformers cannot load .*no file named"):
        verify(folder, out, options)
    with pytest.raises(RunError, match="not verified: transformers loads the file itself"):
        verify(folder, out, replace(options, renames=(("x", "x"),)))
    (folder / "config.json").unlink()
    with pytest.raises(RunError, match=r"not verified: transformers needs the config\.json"):
        verify(folder, out, options)


def test_what_the_files_say_they_are_cannot_be_contradicted(tmp_path, capsys):
    """The two have the same keys and shapes; only where the norms stand differs."""
    config = transformers.M2M100Config(
        **hugging_face.SIZES, vocab_size=40, activation_function="relu", init_std=0.2
    )
    torch.manual_seed(0)
    model = hugging_face.shaken(transformers.M2M100ForConditionalGeneration(config))
    model.save_pretrained(tmp_path / "m2m100")
    files = [str(tmp_path / "m2m100"), str(tmp_path / "out"), "--verify"]
    assert main(["convert", *files, "--family", "marian"]) == 2
    assert "says that it is an M2M100 or NLLB model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["convert", *files, "--family", "m2m100"]) == 0
    assert "`M2M100ForConditionalGeneration` of transformers" in capsys.readouterr().out


def test_the_reference_is_what_the_files_say(tmp_path):
    """A wrong setting is found out where the original has its own."""
    save_marian(tmp_path / "original")
    options = Options(settings={"h": 2})
    convert(tmp_path / "original", tmp_path / "out", options)
    certificate = verify(tmp_path / "original", tmp_path / "out", options)
    assert not certificate.holds
    assert certificate.assumed == {}


def test_what_rests_on_flags_does_not_read_as_proven(tmp_path):
    """A wrong number of heads: both models were told so, and the weights do not tell."""
    (tmp_path / "original").mkdir()
    save_torch(tmp_path / "original")
    options = Options(settings=users.IDS | {"h": 2 * users.IDS["h"]})
    convert(tmp_path / "original", tmp_path / "out", options)
    text = verify(tmp_path / "original", tmp_path / "out", options).text("out")
    assert "If what was assumed is right" in text
    assert "The converted model computes what the original computes." not in text
    (line,) = [line for line in text.splitlines() if "assumed, not proven" in line]
    for word in ("h 8", "pad_id", "norm post", "activation relu", "scale_embedding True"):
        assert word in line


def test_what_the_checkpoint_says_is_not_assumed(tmp_path):
    (tmp_path / "original").mkdir()
    save_fairseq(tmp_path / "original")
    convert(tmp_path / "original", tmp_path / "out")
    certificate = verify(tmp_path / "original", tmp_path / "out", Options())
    assert "h" not in certificate.assumed and "norm" not in certificate.assumed


@pytest.mark.usefixtures("gpu")
def test_it_computes_on_the_cpu_whatever_the_device(tmp_path, monkeypatch):
    """A GPU may round float32 products, and the original did not."""
    save_annotated(tmp_path)
    asked = []

    def spied(*args):
        asked.append(device.is_gpu())
        return load_model(*args)

    monkeypatch.setattr(verify_module, "load_model", spied)
    options = Options(settings={"h": projects.H})
    convert(tmp_path / "model.pt", tmp_path / "out", options)
    assert verify(tmp_path / "model.pt", tmp_path / "out", options).holds
    assert asked and not any(asked)
    assert device.is_gpu()
