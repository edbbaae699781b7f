"""Stanza packages on disk: find the files that a configuration names, and identify them; nothing is loaded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from concord.models.errors import ModelError
from concord.models.words.encoder_config import EncoderConfig
from concord.pipeline.config import ParserConfig
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.parsing.tokens import SENTENCE_CAP
from concord.pipeline.storage.files import file_sha256

EMBEDDED_PACKAGE, MULTILINGUAL_PACKAGE = EMBEDDED_PACKAGES = "parser_en", "parser_multi"
PARSING_VERSION = 5
"""To be raised whenever the modules of this folder, or what the encoder reads of a passage, would give other words for
the same weights."""
ENCODER = EncoderConfig(passage_words=190)
"""How ``parser_multi`` reads the encoder: as the default tagger does, so that it is read once."""
NETWORK_NAME, NETWORK_WEIGHTS_NAME, LEMMAS_NAME = "network.json", "network.safetensors", "lemmas.json.gz"

_EMBEDDED_FOLDERS = Path(__file__).resolve().parents[2] / "models" / "pretrained"
_MULTILINGUAL = "multilingual"
"""What Stanza calls the language of a package for many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StanzaPackage:
    """A Stanza package on disk: the folder of resources.json, the processors that are run, and their files."""

    folder: Path
    language: str
    name: str
    processors: tuple[str, ...]
    files: tuple[Path, ...]


def find_package(config: ParserConfig) -> StanzaPackage:
    """Find the package that a configuration names.

    Raises:
        ModelError: when it is not installed.
    """
    if config.package == EMBEDDED_PACKAGE:
        if config.language != "en":
            raise ModelError(f"parser.package: {EMBEDDED_PACKAGE} is for language 'en', not {config.language!r}")
        return _read_package(
            _EMBEDDED_FOLDERS / config.package, language="en", name="default", processors=_processors(config)
        )
    if config.package == MULTILINGUAL_PACKAGE:
        folder = _EMBEDDED_FOLDERS / config.package
        found = _read_package(folder, language=_MULTILINGUAL, name="default", processors=["tokenize", "mwt"])
        names = (NETWORK_NAME, NETWORK_WEIGHTS_NAME, LEMMAS_NAME) if config.tags else ()
        return replace(found, files=(*found.files, *(folder / name for name in names)))
    if not config.directory:
        from stanza.resources.common import DEFAULT_MODEL_DIR  # imports torch
    folder = Path(config.directory or DEFAULT_MODEL_DIR)
    return _read_package(folder, language=config.language, name=config.package, processors=_processors(config))


def _processors(config: ParserConfig) -> list[str]:
    tags = ["pos", "lemma"] if config.tags else []
    return ["tokenize", "mwt", *tags, *(["depparse"] if config.trees else [])]


def identity_of(config: ParserConfig, package: StanzaPackage) -> ComponentIdentity:
    """Return name, version and digest of a package used with a configuration: equal digests, equal parses."""
    decisive = {
        "stanza": version("stanza"),
        "parsing": PARSING_VERSION,
        "language": config.language,
        "package": config.package,
        "sentence_cap": SENTENCE_CAP,
        "files": {path.relative_to(package.folder).as_posix(): file_sha256(path) for path in package.files},
    }
    if config.package == MULTILINGUAL_PACKAGE and config.tags:
        decisive |= {"encoder": ENCODER.model_dump(), "trees": config.trees}
    digest = sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return ComponentIdentity(name=f"stanza/{config.package}", version=version("stanza"), digest=digest)


def _read_package(folder: Path, *, language: str, name: str, processors: Sequence[str]) -> StanzaPackage:
    """Look up the files of a package's processors, with those they depend on, in resources.json."""
    index = folder / "resources.json"
    try:
        known: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))
        language = known[language].get("alias", language)
        resources: dict[str, Any] = known[language]
    except FileNotFoundError:
        raise _not_installed(folder, language=language, name=name, missing=str(index)) from None
    except (ValueError, KeyError, AttributeError):
        raise _not_installed(folder, language=language, name=name, missing=f"{language!r} in {index}") from None
    found, files = [], set()
    for processor in processors:
        of_processor = resources.get(processor, {})
        # A model with the package's name wins over one that the package lists.
        chosen = name if name in of_processor else resources.get("packages", {}).get(name, {}).get(processor)
        if chosen is None and processor == "mwt":  # many languages have no multi-word tokens
            continue
        if chosen is None:
            missing = f"package {name!r} with a {processor} model for {language!r} in {index}"
            raise _not_installed(folder, language=language, name=name, missing=missing)
        found.append(processor)
        files.add(folder / language / processor / f"{chosen}.pt")
        for needed in of_processor.get(chosen, {}).get("dependencies", []):
            files.add(folder / language / needed["model"] / f"{needed['package']}.pt")
    for path in sorted(files):
        if not path.is_file():
            raise _not_installed(folder, language=language, name=name, missing=str(path))
    return StanzaPackage(
        folder=folder, language=language, name=name, processors=tuple(found), files=tuple(sorted(files))
    )


def _not_installed(folder: Path, *, language: str, name: str, missing: str) -> ModelError:
    return ModelError(
        f"parser.package: Stanza's package {name!r} for {language!r} is not installed: there is no {missing}. "
        f"Nothing is downloaded automatically. Install it with: "
        f'python -c "import stanza; stanza.download({language!r}, package={name!r}, model_dir={str(folder)!r})" '
        f"- or use the embedded one: parser.package={EMBEDDED_PACKAGE}"
    )
