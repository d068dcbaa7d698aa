"""Settings and data that all tests share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mlx_transformer import device  # loads OpenBLAS, which must come before MLX and PyTorch
from tests.needs import missing

# Tests assert results, not times: a busy machine is no failure.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")

# A shell starts background jobs deaf to Ctrl-C, and what the tests start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup leaves ignored


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """Real parallel text, used where it lies beside the checkout."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "multi30k"
    if not folder.is_dir():
        missing("the Multi30k text is not here")
    return folder


@pytest.fixture
def gpu() -> Iterator[None]:
    """The test runs every GPU branch, computed by the CPU."""
    with device.as_gpu():
        yield
