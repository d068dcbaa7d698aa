"""Real models, used where they lie beside the checkout; none of them is part of the project."""

from pathlib import Path

from tests.needs import missing

MODELS = Path(__file__).parents[3] / "shared" / "models"


def real_model(name: str) -> Path:
    """The folder of a real model; without it the test is skipped."""
    folder = MODELS / name
    if not folder.is_dir():
        missing(f"the real model {name} is not here")
    return folder
