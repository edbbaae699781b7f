"""Find the parser that a configuration names: a Stanza package, or a spaCy pipeline by ``spacy:NAME_OR_FOLDER``."""

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from concord.models.adapters.libraries import find_spacy_pipeline, load_spacy_pipeline
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import Device, ParserConfig
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.parsing.stanza_packages import (
    MULTILINGUAL_PACKAGE,
    PARSING_VERSION,
    find_package,
    identity_of,
)
from concord.pipeline.storage.files import file_sha256

if TYPE_CHECKING:
    from concord.pipeline.parsing.parser import Parser

SPACY = "spacy:"


def parser_identity(config: ParserConfig) -> ComponentIdentity:
    """Return name, version and digest of the parser that a configuration names, without loading it.

    Raises:
        ModelError: when the package is not installed.
        ConfigError: for a device that it cannot compute on.
    """
    if config.package.startswith(SPACY):
        return _find_spacy(config)[1]
    return identity_of(config, find_package(config))


def parser_for(tagger: str | None, config: ParserConfig, *, device: Device = "cpu") -> ParserConfig:
    """Return the configuration with the bundled parser that a tagger wants, if it wants one and the job names none.

    ``parser_multi``, which reads the encoder with the tagger, computes on its device, unless the job names another.
    """
    if tagger is not None and "package" not in config.model_fields_set:
        config = config.model_copy(update={"package": tagger})
    if config.package == MULTILINGUAL_PACKAGE and "device" not in config.model_fields_set:
        config = config.model_copy(update={"device": device})
    return config


def load_parser(config: ParserConfig) -> "Parser":
    """Load the parser that a configuration names.

    Raises:
        ModelError: when the package is not installed or does not load.
        ConfigError: when there is no such device.
    """
    if config.package.startswith(SPACY):
        from concord.pipeline.parsing.spacy_parser import SpacyParser

        folder, identity = _find_spacy(config)
        return SpacyParser(config, folder, identity=identity)
    if config.package == MULTILINGUAL_PACKAGE:
        from concord.pipeline.parsing.encoder_parser import EncoderParser

        return EncoderParser(config)
    from concord.pipeline.parsing.stanza_parser import StanzaParser

    return StanzaParser(config)


def makes_trees(config: ParserConfig) -> bool:
    """Return whether the parser that a configuration names finds trees; a spaCy pipeline is loaded to see."""
    if not config.trees or not config.package.startswith(SPACY):
        return config.trees
    nlp = load_spacy_pipeline(_find_spacy(config)[0])
    return any("token.dep" in nlp.get_pipe_meta(name).assigns for name in nlp.pipe_names)


def _find_spacy(config: ParserConfig) -> tuple[Path, ComponentIdentity]:
    """Return the folder of a pipeline and its identity, which does not depend on where that is."""
    if config.device == "cuda":
        raise ConfigError("parser.device: expected cpu, where spaCy pipelines compute, got 'cuda'")
    try:
        folder = find_spacy_pipeline(config.package.removeprefix(SPACY))
    except ModelError as error:
        raise ModelError(f"parser.package: {error}") from error
    library, settings = version("spacy"), [config.trees, config.tags]
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [(path.relative_to(folder).as_posix(), file_sha256(path)) for path in paths]
    digest = sha256(json.dumps([library, PARSING_VERSION, settings, files]).encode()).hexdigest()
    return folder, ComponentIdentity(name="spacy", version=library, digest=digest)
