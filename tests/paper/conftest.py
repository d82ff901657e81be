import pytest
from tests.made_runs import paper_run, read_study


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """Three models of two families, two seeds: six cells."""
    return read_study(paper_run(tmp_path_factory.mktemp("paper") / "run"))
