import pytest
from tests.made_runs import write_audit, write_study

from palimpsest.certificate import certify, keygen
from palimpsest.certificate.bundle import unpack


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A study of one cell."""
    return write_study(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    return keygen(tmp_path_factory.mktemp("keys") / "key.pem")


@pytest.fixture(scope="session")
def bundle(run_folder, tmp_path_factory):
    return certify(run_folder, tmp_path_factory.mktemp("bundle") / "bundle.zip")


@pytest.fixture(scope="session")
def audit_bundle(tmp_path_factory):
    return certify(write_audit(tmp_path_factory.mktemp("audit") / "run"))


@pytest.fixture(scope="session")
def signed_bundle(run_folder, keys, tmp_path_factory):
    return certify(run_folder, tmp_path_factory.mktemp("signed") / "bundle.zip", keys[0])


@pytest.fixture
def members(bundle):
    return unpack(bundle.read_bytes())


@pytest.fixture
def audit_members(audit_bundle):
    return unpack(audit_bundle.read_bytes())
