"""Real models, used where they lie beside the checkout; none of them is part of the project."""

import os
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[3] / "shared" / "models"


def real_model(name: str) -> Path:
    """The folder of a real model; without it the test is skipped, but never by continuous
    integration, which must not skip in silence."""
    folder = MODELS / name
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{folder} is not here")
        pytest.skip(f"the real model {name} is not here")
    return folder
