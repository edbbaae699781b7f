"""An annotation job with all that it names, resolved once before the run; what a run calls finds none of it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from concord.models.bundles.manifest import CALIBRATION_NAME
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import AnnotateConfig, ParserConfig, TaggerRunConfig
from concord.pipeline.identity import ComponentIdentity, ResolvedTagger, component_signature, row_settings
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.pipeline.parsing.resolve_parser import makes_trees, parser_for, parser_identity
from concord.pipeline.storage.files import file_sha256

if TYPE_CHECKING:
    from concord.models.taggers.base import Tagger

_CALIBRATED = {"precision", "samples", "threshold", "terms"}
"""Settings of a tagger's run that decide which names it misses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedJob:
    """An annotation job whose tagger and parser are found, and fit; ``of`` makes one.

    Attributes:
        config: with absolute paths, and with the settings of the collection where the job leaves them out.
        folder: the output, ``config.output.path``.
        taken: those settings of the collection that are not the defaults, by dotted keys.
    """

    config: AnnotateConfig
    folder: OutputFolder
    tagger: ResolvedTagger
    parser: ComponentIdentity
    taken: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row_settings(self) -> dict[str, Any]:
        """Everything that decides the rows of its documents."""
        return row_settings(self.config, self.parser, self.tagger.identity, SCHEMA_VERSION)

    @classmethod
    def of(
        cls,
        config: AnnotateConfig,
        folder: OutputFolder,
        tagger: ResolvedTagger,
        *,
        parser: ComponentIdentity | None = None,
        taken: Mapping[str, Any] | None = None,
    ) -> Self:
        """Find the parser and the list of terms of a configuration, and check that they fit the tagger.

        With ``parser``, another than that of the configuration, the workers must load that one.

        Raises:
            ModelError: when the parser is not installed, or the tagger reads trees and this parser does not make them.
            ConfigError: when candidates are wanted of a tagger without a guarantee, or run otherwise than calibrated.
            InputError: when the list of terms cannot be read.
        """
        parser_config = parser_for(tagger.parser, config.parser, device=config.tagger.device)
        config = config.model_copy(update={"parser": parser_config})
        parser = parser or parser_identity(config.parser)
        check_trees(tagger, config.parser, component_signature(parser), accept=config.tagger.accept_parser)
        _check_guarantee(config, tagger.folder)
        tagger = with_terms(tagger, config.tagger)
        return cls(config=config, folder=folder, tagger=tagger, parser=parser, taken=taken or {})


def with_terms(tagger: ResolvedTagger, settings: TaggerRunConfig) -> ResolvedTagger:
    """Return a tagger with the digest of its list of terms, if it has one; InputError if that cannot be read."""
    return tagger if settings.terms is None else replace(tagger, terms=file_sha256(settings.terms))


def _check_guarantee(config: AnnotateConfig, folder: Path) -> None:
    """Raise ConfigError if candidates are wanted of a tagger without a guarantee, or run otherwise than calibrated."""
    if not config.output.candidates:
        return
    # Importing torch takes seconds.
    from concord.models.confidence import Calibration

    path = folder / CALIBRATION_NAME
    if not path.exists() or Calibration.read_json(path).guarantee is None:
        raise ConfigError(
            f"output.candidates: expected a tagger with a guarantee, got {config.tagger.model}, which has none; find "
            f"one on 20 gold documents or more (concord calibrate {config.tagger.model} --recall 0.95 --data GOLD), or "
            "set output.candidates=false"
        )
    changed = config.tagger.model_dump(include=_CALIBRATED, exclude_defaults=True)
    if changed:
        raise ConfigError(
            "output.candidates: expected a tagger that is run as it was calibrated, because its guarantee holds for "
            f"nothing else; leave out tagger.{', tagger.'.join(changed)}"
        )


def check_trees(tagger: "ResolvedTagger | Tagger", parser: ParserConfig, signature: str, *, accept: bool) -> None:
    """Raise ModelError if a tagger reads trees, and a document may have none or those of another parser.

    With ``accept``, another parser is allowed; ``signature`` is that of this one.
    """
    name, trees = tagger.name, tagger.trees
    if trees is not None and not (parser.trees if trees == signature else makes_trees(parser)):
        raise ModelError(
            f"tagger.model: {name} reads dependency trees, and {parser.package} finds none (parser.trees: "
            f"{str(parser.trees).lower()}); set parser.trees=true (--trees), choose another parser.package, or a "
            "tagger that reads words alone, such as entities_multi"
        )
    if not accept and trees not in (None, signature):
        raise ModelError(
            f"tagger.model: {name} learned from the trees of {trees!r}, this run parses with {signature!r}; its labels "
            "would suffer. Choose the same parser under 'parser', or parse the training corpora with this one "
            "(concord parse) and train again; --set tagger.accept_parser=true runs it regardless"
        )
