"""All families, and which of them a checkpoint belongs to.

To add one, write a file like `fairseq.py` that ends in a `FAMILY`, and name it here.
"""

from mlx_transformer.convert import (
    annotated,
    fairseq,
    fsmt,
    jadore,
    marian,
    marian_npz,
    mlx,
    opennmt,
    torch_nn,
)
from mlx_transformer.convert.checkpoint import Checkpoint
from mlx_transformer.convert.family import Family, Options, Source, open_source
from mlx_transformer.errors import InputError

# The first that fits is taken: transformers' models have fairseq's names and something more.
FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (torch_nn, marian, fsmt, fairseq, annotated, jadore, opennmt, marian_npz, mlx)
}


def find_family(
    checkpoint: Checkpoint, options: Options, name: str | None = None
) -> tuple[Family, Source]:
    """The family of that name, or the one whose keys these are."""
    if name is not None:
        family = FAMILIES[name]
        source = open_source(checkpoint, family, options, trusted=True)
        if source is None:
            raise InputError(
                f"{checkpoint.path} is not {family.title}: no key ends in {family.anchor!r}",
                options=["list", "rename"],
            )
        return family, source
    for family in FAMILIES.values():
        source = open_source(checkpoint, family, options)
        if source is not None:
            return family, source
    raise InputError(
        f"{checkpoint.path} is of no family we know ({', '.join(FAMILIES)}): no key ends in one "
        "that they have",
        options=["list", "rename"],
    )
