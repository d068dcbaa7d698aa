"""Settings and data that all tests share."""

import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mlx_transformer import device  # loads OpenBLAS, which must come before MLX and PyTorch
from tests.needs import missing

# Tests assert results, not times: a busy machine is no failure. The devices below may stay the same
# for all examples of a test.
WARNINGS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("project", deadline=None, suppress_health_check=WARNINGS)
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


@pytest.fixture(params=["cpu", "gpu"])
def any_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs twice: as on a CPU, and with every GPU branch."""
    with device.as_gpu() if request.param == "gpu" else nullcontext():
        yield


@pytest.fixture
def any_device_uncompiled(any_device: None) -> Iterator[None]:
    """For searches: here a GPU's would each be compiled for seconds, by the compiler of a CPU."""
    with device.uncompiled() if device.is_gpu() else nullcontext():
        yield
