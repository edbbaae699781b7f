"""What tests of every room share."""

import logging
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from concord_testing.heads import Head, ray_head
from hypothesis import HealthCheck, settings

from concord.pipeline.storage import s3

# A busy machine is no fault of the code: examples are judged by their outcome, not by the clock.
settings.register_profile("concord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("concord")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Head]:
    """Give a Ray cluster of two CPUs on loopback, shared by all tests of the session.

    Starting one takes ten seconds and more, joining one.
    """
    with ray_head() as head:
        yield head


@pytest.fixture(scope="session")
def ray_address(ray_cluster: Head) -> str:
    """Give the address of the shared Ray cluster."""
    return ray_cluster.address


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Give the address of a server on loopback that speaks the protocol of S3, for all tests of the session."""
    from moto.moto_server import threaded_moto_server
    from moto.server import DomainDispatcherApplication, ThreadedMotoServer

    deciding = threading.Lock()

    class OneAtATime(DomainDispatcherApplication):  # type: ignore[misc]
        """S3 decides conditions one write after the other; moto looks and writes in two steps."""

        def __call__(self, *request: Any) -> Any:
            with deciding:
                return super().__call__(*request)

    threaded_moto_server.DomainDispatcherApplication = OneAtATime
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def s3_url(s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of an empty bucket, with credentials for it in the environment."""
    # Processes that are killed leave their staging folders behind.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "some-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    name = f"bucket-{uuid.uuid4().hex}"
    s3.client(os.getpid()).create_bucket(Bucket=name)
    return f"s3://{name}"
