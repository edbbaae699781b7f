"""What is sent to a cluster: an archive of the code, bundled models and the resolved job; and what it will do.

The bytes of the archive depend on nothing else. It holds one of the bundled taggers at most, that of the job. Input,
output and a model given as a folder are not part of it.
"""

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.corrections.log import LOG_NAME
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.planning.inputs import find_inputs
from concord.pipeline.storage.files import file_sha256, file_state
from concord.pipeline.storage.urls import without_secrets
from concord.workflows.registry.mlflow_client import tracking_uri
from concord.workflows.registry.model_versions import is_reference, resolve
from concord.workflows.registry.resolve_tagger import bundled_names, find_entity_tagger

PACKAGE = Path(__file__).absolute().parents[2]
"""The import package; in a checkout its subfolders are links, which must not be resolved."""
JOB_NAME = "job.yaml"
LARGEST_PACKAGE = 104_000_000
"""Bytes. Ray's job server refuses 100 MiB, and every node unpacks the archive."""
STOP_SECONDS = 300
"""How long a stopped job may take to finish its shards; Ray's default is 3 seconds."""
LOCAL_STORES = ("sqlite:", "file:")
"""Beginnings of the addresses of stores that are files of one machine."""
_SHOWN_FILES = 10


def pack(
    config: AnnotateConfig, *, completed: AnnotateConfig | None = None, limit: int = LARGEST_PACKAGE
) -> tuple[bytes, str]:
    """Return the archive and the digest of the job in it.

    Args:
        completed: the job with the settings of its collection, which say what tagger and parser it will use.

    Raises:
        ConfigError: when it is larger than ``limit`` bytes, naming the largest files.
    """
    # Only what was set: an explicit default would count as the user's choice.
    values = config.model_dump(mode="json", exclude_unset=True)
    job: bytes = yaml.safe_dump(values, sort_keys=True, allow_unicode=True).encode()
    paths = _package_files(completed or config)
    files = {path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes() for path in paths}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {**files, JOB_NAME: job}.items():
            # A fixed date: Ray identifies an archive by its bytes and uploads it once.
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            # A ZipInfo says for itself whether it is compressed.
            archive.writestr(member, content, zipfile.ZIP_DEFLATED, compresslevel=1)
        packed = {member.filename: member.compress_size for member in archive.infolist()}
    package = buffer.getvalue()
    if len(package) > limit:
        raise ConfigError(_too_large(len(package), packed, limit))
    return package, hashlib.sha256(job).hexdigest()


def tracking_environment(config: AnnotateConfig) -> dict[str, str]:
    """Return the variables with which a job finds MLflow's store, whose default depends on the working folder.

    A local store is left out unless the job's tagger is registered in it.

    Raises:
        ConfigError: when the address holds a password, which the cluster would display.
    """
    if not is_reference(config.tagger.model) and not os.environ.get("MLFLOW_TRACKING_URI"):
        return {}
    uri = tracking_uri()
    if urlsplit(uri).password is not None:
        raise ConfigError(
            f"MLFLOW_TRACKING_URI: expected an address without a password, got {without_secrets(uri)} with one, which "
            "the cluster would display; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where the job runs"
        )
    if uri.startswith(LOCAL_STORES) and not is_reference(config.tagger.model):
        return {}
    return {"MLFLOW_TRACKING_URI": uri}


def work_digest(config: AnnotateConfig, *, job_digest: str) -> str | None:
    """Return the SHA-256, in hex, of a job, its tagger, its corrections, and the sizes and times of its files.

    The files are those of the input and the list of terms.

    Jobs of equal digests do the same, so that one of them is enough. None if this machine cannot see the input or the
    tagger, which only the nodes of a cluster need to.
    """
    try:
        inputs = find_inputs(config.input, output=config.output.path, format=config.reader.format)
        states = [(file.path, file.fault or file.state or file_state(file.path)) for file in inputs.files]
        if config.tagger.terms is not None:
            states.append((config.tagger.terms, file_state(config.tagger.terms)))
        model = config.tagger.model
        tagger = resolve(model).reference if is_reference(model) else find_entity_tagger(model).digest
    except ConcordError:
        return None
    corrections = Path(config.output.path) / LOG_NAME
    decisive = json.dumps(
        [job_digest, tagger, states, *([file_sha256(corrections)] if corrections.is_file() else [])], sort_keys=True
    )
    return hashlib.sha256(decisive.encode()).hexdigest()


def is_finished(folder: OutputFolder) -> bool:
    """Tell whether this machine sees a finished collection in the output."""
    try:
        return folder.manifest() is not None
    except ConcordError:
        return False


def _package_files(config: AnnotateConfig) -> list[Path]:
    """Return the files of the import package in a fixed order, without bundled models that a job does not use.

    The links of a checkout are followed.
    """
    unused = set(bundled_names()) - {config.tagger.model}
    others = [PACKAGE / "models" / "pretrained" / name for name in unused]
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(PACKAGE, followlinks=True)
        for name in names
        if not name.endswith(".pyc") and not any(Path(folder).is_relative_to(other) for other in others)
    )


def _too_large(size: int, packed: dict[str, int], limit: int) -> str:
    """Return a message that names the fewest files whose removal would make the archive small enough."""
    largest, left = [], size
    for name, bytes_ in sorted(packed.items(), key=lambda item: -item[1]):
        if left <= limit:
            break
        largest.append(f"  {bytes_ / 1e6:7.1f} MB  {PACKAGE.parent / name}")
        left -= bytes_
    lines = [
        f"submit: expected a package of at most {limit / 1e6:.1f} MB, got {size / 1e6:.1f} MB (compressed). "
        "The largest files:",
        *largest[:_SHOWN_FILES],
        *([f"  and {len(largest) - _SHOWN_FILES:,} further files"] if len(largest) > _SHOWN_FILES else []),
        "Move them out of the folders of the code. Refer to your own model by a folder that every node sees, or by "
        "models:/NAME.",
    ]
    return "\n".join(lines)
