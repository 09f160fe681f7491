"""What tests of remote traces share: a run, a cache of their own, a real S3 server and its bucket."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.launch import s3_server
from support.web import file_server
from support.web.file_server import Behaviour

from tracelens.simulator.synthetic import Fault, Scenario, write

SLOW = Scenario(ranks=4, ranks_per_host=2, steps=40, faults=(Fault("backprop", (2,), factor=1.5),))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for copies that no other test uses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tracelens" / "remote-v1"


@pytest.fixture(scope="session")
def slow_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run of four ranks, one of them slow."""
    folder = tmp_path_factory.mktemp("slow") / "run"
    write(SLOW, folder)
    return folder


@dataclass(frozen=True)
class Bucket:
    """A bucket; what is put into it and removed from it goes past the code under test."""

    name: str
    client: Any

    def put(self, path: Path, under: str) -> str:
        """Copy a file, or all files of a folder; return its address."""
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                name = "" if file == path else f"/{file.relative_to(path).as_posix()}"
                self.client.pipe_file(f"{self.name}/{under}{name}", file.read_bytes())
        return f"s3://{self.name}/{under}"

    def remove(self, name: str) -> None:
        """Remove one object."""
        self.client.rm_file(f"{self.name}/{name}")


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    with s3_server.serving() as address:
        yield address


@pytest.fixture
def bucket(s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return an empty bucket, whose server and credentials the environment names."""
    import s3fs  # noqa: PLC0415 - tests of web servers do without

    for name, value in {
        "AWS_ENDPOINT_URL": s3_address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "hidden-words",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    s3fs.S3FileSystem.clear_instance_cache()
    client = s3fs.S3FileSystem(use_listings_cache=False)
    name = f"bucket-{abs(hash(str(tmp_path))):x}"
    client.mkdir(name)
    return Bucket(name, client)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path, Behaviour]]:
    """Return the address of a web server, the folder that it serves, and how it behaves."""
    folder = tmp_path / "served"
    folder.mkdir()
    with file_server.serving(folder) as (address, behaviour):
        yield address, folder, behaviour
