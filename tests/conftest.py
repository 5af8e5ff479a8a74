"""What several test folders share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("TFBERT_SHARED", ROOT / "../shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}")
    return folder
