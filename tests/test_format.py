"""What earlier versions wrote is read for ever; what a newer one writes is refused."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_transformer.config import FORMAT_VERSION, ModelConfig
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import load_recipe
from mlx_transformer.storage import load_model, named_parameters
from mlx_transformer.tokenizer import load_tokenizer
from mlx_transformer.training.checkpoint import Checkpoints

FORMAT_1 = Path(__file__).parent / "fixtures" / "format-1"
CHECKPOINTS = FORMAT_1 / "run" / "checkpoints"


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    """A safetensors file, read without MLX: a length, a JSON header, then raw float32 or int32."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__")
    types = {"F32": "<f4", "I32": "<i4"}
    return {
        name: np.frombuffer(
            content[start + place["data_offsets"][0] : start + place["data_offsets"][1]],
            types[place["dtype"]],
        ).reshape(place["shape"])
        for name, place in header.items()
    }


def test_an_old_model_computes_what_its_file_says():
    import torch

    from tests.parity.torch_reference import TorchTransformer, torch_names

    model = load_model(FORMAT_1 / "model")
    reference = TorchTransformer(model.config).eval()
    parameters = dict(reference.named_parameters())
    names = torch_names(model.config)
    with torch.no_grad():
        for name, values in arrays_in(FORMAT_1 / "model" / "model.safetensors").items():
            theirs, rows = names.pop(name)
            parameters[theirs][rows] = torch.from_numpy(values.copy())
        assert not names
        source, target = np.array([[5, 6, 2, 0], [7, 8, 9, 2]]), np.array([[1, 4, 5], [1, 6, 7]])
        expected = reference(torch.from_numpy(source), torch.from_numpy(target)).numpy()
    found = np.array(model(mx.array(source), mx.array(target)))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_an_old_config_keeps_every_value():
    values = json.loads((FORMAT_1 / "model" / "config.json").read_text())
    config = ModelConfig.load(FORMAT_1 / "model" / "config.json").to_dict()
    assert {name: config[name] for name in values} == values


def test_an_old_tokenizer_is_read():
    tokenizer = load_tokenizer(FORMAT_1 / "model")
    ids = tokenizer.encode_source("the dog sleeps .")
    assert ids == [4, 5, 6, 10]
    assert tokenizer.decode(ids) == "the dog sleeps ."


def test_an_old_checkpoint_resumes_with_every_array():
    found = Checkpoints(CHECKPOINTS).newest(pytest.fail)
    assert found is not None
    state, progress, config = found
    folder = CHECKPOINTS / "step-00000003"
    weights = arrays_in(folder / "model.safetensors")
    rest = arrays_in(folder / "optimizer.safetensors")
    expected = {f"parameters.{name}": values for name, values in weights.items()} | rest
    arrays = dict(tree_flatten(state))
    assert arrays.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(np.array(arrays[name]), values)
    values = json.loads((folder / "progress.json").read_text())["progress"]
    assert {name: getattr(progress, name) for name in values} == values
    assert named_parameters(load_model(folder)).keys() == weights.keys()
    assert config.d_model == 8


def test_an_old_recipe_of_a_run_is_read():
    recipe = load_recipe(FORMAT_1 / "run" / "run.toml")
    assert recipe.data.train[0].target == Path("/corpus/train.de")
    assert (recipe.training.max_steps, recipe.training.clip_norm) == (7, 1.0)
    assert (recipe.model.preset, recipe.model.overrides) == ("tiny", {"norm": "pre"})
    assert recipe.validation.patience == 3


def test_files_name_their_format(tmp_path):
    ModelConfig(d_model=8, h=2).save(tmp_path / "config.json")
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["format_version"] == FORMAT_VERSION
    assert ModelConfig.load(tmp_path / "config.json") == ModelConfig(d_model=8, h=2)


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 99])
def test_a_newer_config_is_refused(tmp_path, version):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"format_version": version, "d_model": 8, "rotary": True}))
    with pytest.raises(InputError, match=f"format version {version}.*install a newer"):
        ModelConfig.load(path)


@pytest.mark.parametrize("version", [0, True, "2", None])
def test_a_format_that_is_no_number_is_refused(tmp_path, version):
    (tmp_path / "config.json").write_text(json.dumps({"format_version": version}))
    with pytest.raises(InputError, match="format_version must be a whole number"):
        ModelConfig.load(tmp_path / "config.json")


def test_a_newer_checkpoint_is_refused_and_not_taken_for_damaged(tmp_path):
    shutil.copytree(CHECKPOINTS, tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-00000003" / "progress.json"
    values = json.loads(path.read_text()) | {"format_version": FORMAT_VERSION + 1}
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="install a newer"):
        Checkpoints(tmp_path / "checkpoints").newest(pytest.fail)
