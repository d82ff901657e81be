from pathlib import Path

import pytest
from tests.made_runs import write_audit, write_study

from palimpsest.certificate import certify, keygen
from palimpsest.certificate.bundle import unpack


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one cell."""
    return write_study(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return keygen(tmp_path_factory.mktemp("keys") / "key.pem")


@pytest.fixture(scope="session")
def bundle(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certify(run_folder, tmp_path_factory.mktemp("bundle") / "bundle.zip")


@pytest.fixture(scope="session")
def audit_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certify(write_audit(tmp_path_factory.mktemp("audit") / "run"))


@pytest.fixture(scope="session")
def signed_bundle(
    run_folder: Path, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return certify(run_folder, tmp_path_factory.mktemp("signed") / "bundle.zip", keys[0])


@pytest.fixture
def members(bundle: Path) -> dict[str, bytes]:
    return unpack(bundle.read_bytes())


@pytest.fixture
def audit_members(audit_bundle: Path) -> dict[str, bytes]:
    return unpack(audit_bundle.read_bytes())
