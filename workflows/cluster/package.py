"""What travels to a cluster: the code, the embedded models and the resolved job, in one archive; and how it runs there.

The archive's bytes depend on nothing else. Input, output and a model given as a folder stay where they are.
"""

import hashlib
import io
import os
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from concord.models.config import ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.storage.urls import without_secrets
from concord.workflows.registry.mlflow_client import tracking_uri
from concord.workflows.registry.model_versions import is_reference

PACKAGE = Path(__file__).absolute().parents[2]
"""The import package; in a checkout its rooms are links, which must not be resolved."""
JOB_NAME = "job.yaml"
LARGEST_PACKAGE = 50_000_000
"""Bytes; Ray's job server itself refuses 100 MiB, and every node unpacks what it takes."""
STOP_SECONDS = 300
"""How long a stopped job may take to finish its shards; Ray's own default is 3 seconds."""
_SHOWN_OFFENDERS = 10


def pack(config: AnnotateConfig) -> tuple[bytes, str]:
    """Give the archive that travels, and the digest of the job in it.

    Raises:
        ConfigError: when it is too large, with the files to blame.
    """
    job = job_yaml(config).encode()
    files = {path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes() for path in _package_files()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in {**files, JOB_NAME: job}.items():
            # A fixed date: Ray names an archive by its bytes and takes none twice.
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), content)
        packed = {member.filename: member.compress_size for member in archive.infolist()}
    package = buffer.getvalue()
    if len(package) > LARGEST_PACKAGE:
        raise ConfigError(_too_large(len(package), packed))
    return package, hashlib.sha256(job).hexdigest()


def _package_files() -> list[Path]:
    """Give every file of the import package in a fixed order, following the links of a checkout."""
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(PACKAGE, followlinks=True)
        for name in names
        if not name.endswith(".pyc")
    )


def job_yaml(config: AnnotateConfig) -> str:
    """Write a job as YAML."""
    # Only what was set: a default that is written out would count as chosen.
    text: str = yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True), sort_keys=True, allow_unicode=True)
    return text


def tracking_environment(config: AnnotateConfig) -> dict[str, str]:
    """Give what a job needs to find MLflow's store; it lies by default in the working folder, another one there.

    Raises:
        ConfigError: when the address holds a password, which the cluster would show to everybody.
    """
    if not is_reference(config.tagger.model) and not os.environ.get("MLFLOW_TRACKING_URI"):
        return {}
    uri = tracking_uri()
    if urlsplit(uri).password is not None:
        raise ConfigError(
            f"MLFLOW_TRACKING_URI: expected an address without a password, got {without_secrets(uri)} with one, which "
            "the cluster would show; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where the job runs"
        )
    return {"MLFLOW_TRACKING_URI": uri}


def _too_large(size: int, packed: dict[str, int]) -> str:
    """Name the fewest files without which the rest could travel."""
    offenders, left = [], size
    for name, bytes_ in sorted(packed.items(), key=lambda item: -item[1]):
        if left <= LARGEST_PACKAGE:
            break
        offenders.append(f"  {_megabytes(bytes_)}  {PACKAGE.parent / name}")
        left -= bytes_
    more = len(offenders) - _SHOWN_OFFENDERS
    return "\n".join(
        [
            f"submit: expected at most {_megabytes(LARGEST_PACKAGE).strip()} to travel, got {_megabytes(size).strip()} "
            "(compressed). Too large:",
            *offenders[:_SHOWN_OFFENDERS],
            *([f"  and {more:,} further files"] if more > 0 else []),
            "Move them out of the folders of the code. A model of yours is named by a folder that every node sees, "
            "or by models:/NAME.",
        ]
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:7.1f} MB"
