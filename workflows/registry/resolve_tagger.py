"""Find the tagger that a name means: a folder, a bundled tagger, a registered version, or another library's model.

``concord bundle`` writes it to a folder.
"""

import difflib
import importlib.util
import shutil
import tempfile
from pathlib import Path

from concord.models.bundles.manifest import (
    BUNDLE_NAME,
    CONFIG_NAME,
    needed_encoders,
    read_saved,
    tagger_digest,
)
from concord.models.errors import ConfigError, EncoderMissingError, ModelError
from concord.models.labels import TOKENS
from concord.models.words.encoder_config import find_encoder
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.storage.atomic_writes import write_atomically
from concord.pipeline.storage.folders import exclusive
from concord.workflows.bundles import copy_bundle, require_new_folder
from concord.workflows.console import Answer
from concord.workflows.environment import cache_folder
from concord.workflows.registry import model_versions

BUNDLED_FOLDER = Path(__file__).resolve().parents[2] / "models" / "pretrained"
DEFAULT = "entities_multi"
INSTALL_TRANSFORMERS = "pip install '.[hf]'"


def find_tagger(model: str) -> ResolvedTagger:
    """Resolve folder, name, version and digest of a tagger.

    Args:
        model: a folder, the name of a bundled tagger, models:/NAME@ALIAS, models:/NAME/VERSION, or the model of another
            library, such as spacy:NAME or hf:FOLDER.

    Raises:
        ModelError: when there is no such tagger, or something it needs is not installed.
        TrackingError: when the registry cannot be reached.
    """
    if model_versions.is_reference(model):
        version = model_versions.resolve(model)
        folder = model_versions.fetch(version)
        return _resolved(folder, name=version.name, version=str(version.version), digest=version.digest)
    adapter, colon, source = model.partition(":")
    if colon and adapter.isidentifier():
        folder = _adapt(model, adapter, source)
        return _resolved(folder, name=adapter, digest=folder.name)
    folder = Path(model).expanduser()
    if (folder / CONFIG_NAME).is_file():
        # Not named after its folder: a bundle that was moved is still the same tagger.
        return _resolved(folder.absolute(), name=read_saved(folder).tagger)
    if (folder / BUNDLE_NAME / CONFIG_NAME).is_file():
        raise ModelError(
            f"{model}: expected a folder with {CONFIG_NAME}, got that of a training; "
            f"its tagger is {folder / BUNDLE_NAME}"
        )
    return _find_bundled(model)


def find_entity_tagger(model: str) -> ResolvedTagger:
    """Resolve the tagger of an annotation, as ``find_tagger`` does; a tagger of token labels is a ModelError."""
    tagger = find_tagger(model)
    if read_saved(tagger.folder).vocabulary.get("scheme") == TOKENS.name:
        raise ModelError(
            f"{model}: a tagger of token labels, which can be evaluated but cannot annotate, since the output tables "
            "hold entities; choose a tagger of entities"
        )
    return tagger


def bundle_command(model: str, output: Path) -> Answer:
    """Write the bundle of a tagger, also of one that wraps another library's model, to a new folder.

    Raises:
        ConfigError: when the folder is not empty.
        ModelError: when there is no such tagger, or its library is not installed.
    """
    require_new_folder(output, "the bundle")
    tagger = find_tagger(model)
    copy_bundle(tagger.folder, output)
    lines = (f"bundle   {output}", f"digest   {tagger.digest}", f"try it   concord tag TEXT --model {output}")
    return Answer(values={"folder": output, "digest": tagger.digest}, text="\n".join(lines))


def bundled_names() -> tuple[str, ...]:
    """Return the names of the bundled taggers, sorted."""
    return tuple(sorted(path.parent.name for path in BUNDLED_FOLDER.glob(f"*/{CONFIG_NAME}")))


def _adapt(model: str, adapter: str, source: str) -> Path:
    """Save the tagger that wraps the model of another library to the cache folder, unless it is there, and return it.

    Workers on other machines must see the cache folder too.
    """
    from concord.models.adapters.base import AdaptedTagger  # imports torch
    from concord.models.bundles.checkpoint import save_tagger
    from concord.models.bundles.registry import tagger_class

    try:
        tagger_type = tagger_class(adapter)
    except ConfigError as error:
        raise ModelError(f"{model}: expected the name of a tagger before the colon: {error}") from error
    if not issubclass(tagger_type, AdaptedTagger):
        raise ModelError(f"{model}: expected a tagger that wraps models of another library, got {adapter}")
    folder = cache_folder() / "adapted"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Names the digest of the tagger that a model became, so that it is loaded once.
        known = folder / f"{tagger_type.model_digest(tagger_type.find(source))}.txt"
        if known.is_file() and _is_whole(target := folder / known.read_text(encoding="ascii")):
            return target
        with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as incoming:
            saved = Path(incoming) / BUNDLE_NAME
            save_tagger(tagger_type.adapt(source), saved)
            target = folder / tagger_digest(saved)
            with exclusive(folder / f"{target.name}.lock"):
                if not _is_whole(target):
                    shutil.rmtree(target, ignore_errors=True)
                    saved.rename(target)
    except ModelError as error:
        raise ModelError(f"{model}: {error}") from error
    write_atomically(known, target.name.encode(), staging=folder)
    return target


def _is_whole(folder: Path) -> bool:
    """Return whether a folder exists and holds the tagger whose digest it is named after."""
    return folder.is_dir() and tagger_digest(folder) == folder.name


def _find_bundled(name: str) -> ResolvedTagger:
    names = bundled_names()
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"bundled are {', '.join(names) or 'none'}"
        raise ModelError(
            f"{name}: expected a folder with {CONFIG_NAME}, a bundled tagger or models:/NAME@ALIAS; {hint}"
        )
    return _resolved(BUNDLED_FOLDER / name, name=name)


def _missing(folder: Path) -> str | None:
    """Return what the encoders of a tagger lack, which the bundled one does not.

    A tuned encoder is in the tagger's folder and needs the library only.
    """
    for encoder in needed_encoders(folder):
        if not encoder.tuned:
            try:
                find_encoder(encoder.source)
            except EncoderMissingError as error:
                return str(error)
        if importlib.util.find_spec("transformers") is None:
            return f"the library transformers is not installed: {INSTALL_TRANSFORMERS}"
    return None


def _resolved(folder: Path, *, name: str, version: str | None = None, digest: str | None = None) -> ResolvedTagger:
    """Return the tagger in a folder; its digest is taken, unless the files were just checked against it."""
    missing = _missing(folder)
    if missing is not None:
        raise ModelError(f"{name}: {missing}")
    saved = read_saved(folder)
    return ResolvedTagger(
        name=name,
        version=version,
        digest=digest or tagger_digest(folder),
        folder=folder,
        trees=saved.trees,
        parser=saved.parser,
    )
