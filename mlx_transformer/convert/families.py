"""All families, and which of them a checkpoint belongs to.

To add one, write a file like `annotated.py` that ends in a `FAMILY`, and name it here.
"""

import re

from mlx_transformer.convert import (
    annotated,
    bart,
    bert,
    ctranslate2,
    distilbert,
    fairseq,
    fsmt,
    gpt2,
    jadore,
    m2m100,
    marian,
    marian_npz,
    mbart,
    mlx,
    opennmt,
    pegasus,
    roberta,
    t5,
    torch_nn,
)
from mlx_transformer.convert.checkpoint import Checkpoint
from mlx_transformer.convert.family import Family, Options, Source, open_source
from mlx_transformer.convert.tensors import shown
from mlx_transformer.errors import InputError

# The first that fits is taken.
MODULES = (
    *(torch_nn, marian, fsmt, bart, mbart, m2m100, pegasus, t5, fairseq),
    *(gpt2, bert, roberta, distilbert),
    *(annotated, jadore, opennmt, marian_npz, ctranslate2, mlx),
)
FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in MODULES}

# transformers' encoder-decoders that look like some of these and are not, by their `model_type`.
REFUSED = {
    "longt5": "LongT5, which attends to blocks of the source",
    "led": "LED, which attends to windows of the source",
    "bigbird_pegasus": "BigBird-Pegasus, which attends to blocks of the source",
    "pegasus_x": "PEGASUS-X, which attends to blocks of the source",
    "switch_transformers": "a Switch Transformer, a mixture of experts",
    "nllb-moe": "NLLB's mixture of experts (its dense models can be read)",
    "prophetnet": "ProphetNet, which predicts several words at once",
    "xlm-prophetnet": "XLM-ProphetNet, which predicts several words at once",
}


def find_family(
    checkpoint: Checkpoint, options: Options, name: str | None = None
) -> tuple[Family, Source]:
    """The family of that name, or the one whose keys these are."""
    model_type = checkpoint.fields("config.json").get("model_type")
    if model_type in REFUSED:
        raise InputError(f"{checkpoint.path} is {REFUSED[model_type]}: that is not supported")
    opened = ((each, open_source(checkpoint, each, options)) for each in FAMILIES.values())
    known = next(((family, source) for family, source in opened if source is not None), None)
    if name is not None and (known is None or known[0].name != name):
        if known is not None and model_type is not None:
            raise InputError(
                f"{checkpoint.path} says that it is {known[0].title} (model_type "
                f"{shown(model_type)}), not {FAMILIES[name].title}",
                options=["family"],
            )
        return _trusted(checkpoint, options, FAMILIES[name])
    if known is not None:
        return known
    raise _unknown(checkpoint, model_type)


def _unknown(checkpoint: Checkpoint, model_type: object) -> InputError:
    """What it is and what we read; new names are of use only where there are two stacks."""
    names = [shown(key) for key in list(checkpoint.tensors)[:2]]
    what = f"a {shown(model_type)} model" if model_type else f"a file of {' and '.join(names)}, ..."
    known = f"{checkpoint.path} is {what}: of no family we know ({', '.join(FAMILIES)})"
    if model_type or not any(re.search(r"dec|cross", key) for key in checkpoint.tensors):
        return InputError(known)
    anchors = ", ".join(dict.fromkeys(family.anchor for family in FAMILIES.values()))
    return InputError(
        f"{known}. Give its keys the names of one of them; it is known by one of: {anchors}",
        options=["list", "rename"],
    )


def _trusted(checkpoint: Checkpoint, options: Options, family: Family) -> tuple[Family, Source]:
    """As the user says: files that do not say what they are cannot contradict."""
    source = open_source(checkpoint, family, options, trusted=True)
    if source is None:
        raise InputError(
            f"{checkpoint.path} is not {family.title}: no key ends in {family.anchor!r}",
            options=["list", "rename"],
        )
    return family, source
