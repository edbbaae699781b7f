"""Find the parser that a configuration names: a Stanza package, or a spaCy pipeline by ``spacy:NAME_OR_FOLDER``.

``parser_multi`` is two packages: its own, and ``parser_en`` for documents in English.
"""

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from concord.models.adapters.libraries import find_spacy_pipeline, load_spacy_pipeline
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import ParserConfig
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.names.language import ENGLISH
from concord.pipeline.parsing.stanza_packages import (
    EMBEDDED_PACKAGE,
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
    identity = identity_of(config, find_package(config))
    if config.package != MULTILINGUAL_PACKAGE:
        return identity
    english = _for_english(config)
    # The model of languages decides which of the two packages reads a document.
    decisive = [identity.digest, identity_of(english, find_package(english)).digest, version("py3langid")]
    return identity.model_copy(update={"digest": sha256(json.dumps(decisive).encode()).hexdigest()})


def parser_for(tagger: str | None, config: ParserConfig) -> ParserConfig:
    """Return the configuration with the bundled parser that a tagger wants, if it wants one and the job names none."""
    if tagger is None or "package" in config.model_fields_set:
        return config
    return config.model_copy(update={"package": tagger})


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
    from concord.pipeline.parsing.stanza_parser import StanzaParser

    if config.package != MULTILINGUAL_PACKAGE:
        return StanzaParser(config)
    from concord.pipeline.parsing.stanza_parser import LanguageParser

    return LanguageParser(config, english=StanzaParser(_for_english(config)), identity=parser_identity(config))


def makes_trees(config: ParserConfig) -> bool:
    """Return whether the parser that a configuration names finds trees; a spaCy pipeline is loaded to see."""
    if not config.trees or not config.package.startswith(SPACY):
        return config.trees
    nlp = load_spacy_pipeline(_find_spacy(config)[0])
    return any("token.dep" in nlp.get_pipe_meta(name).assigns for name in nlp.pipe_names)


def _for_english(config: ParserConfig) -> ParserConfig:
    """Return the configuration of the parser that reads the English documents of ``parser_multi``."""
    return config.model_copy(update={"package": EMBEDDED_PACKAGE, "language": ENGLISH})


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
