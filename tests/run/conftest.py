import pytest
from toy import toy_run


@pytest.fixture
def run(quick):
    return toy_run(quick / "run")
