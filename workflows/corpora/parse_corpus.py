"""Add dependency trees to a gold corpus, made by the parser that annotates later."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import field_validator

from concord.models.config import Config
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import ParserConfig
from concord.pipeline.corpora.conllu import PARSER_KEY, SOURCE_KEY, read_header
from concord.pipeline.corpora.read_corpus import GoldDocument, read_gold
from concord.pipeline.corpora.write_corpus import PARSED_SUFFIXES, write_gold
from concord.pipeline.identity import component_signature
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.resolve_parser import load_parser, parser_identity
from concord.pipeline.parsing.tokens import WordAnalysis
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import Answer, counted, short_path
from concord.workflows.corpora.corpora import require_sentences
from concord.workflows.job_paths import absolute, absolute_parser
from concord.workflows.progress import counting
from concord.workflows.yaml_values import apply_overrides

_SENTENCES_A_CALL = 1_000


class ParseConfig(Config):
    """One gold corpus to parse."""

    input: str
    """A corpus: ``.conllu`` or ``.conll``, optionally with ``.gz`` or ``.zst``."""
    output: str
    """The corpus with trees: ``.conllu``, optionally with ``.gz`` or ``.zst``."""
    parser: ParserConfig = ParserConfig()

    @field_validator("parser")
    @classmethod
    def _check_parser(cls, parser: ParserConfig) -> ParserConfig:
        if not parser.trees:
            raise ValueError("expected trees: true, since this command adds trees")
        return parser


def read_parse_job(values: Mapping[str, Any], *, overrides: Sequence[str] = ()) -> ParseConfig:
    """Return the job of parsing a gold corpus; overrides take precedence over values."""
    job = dict(values)
    apply_overrides(job, overrides)
    config = ParseConfig.from_mapping(job)
    paths = {"input": absolute(config.input), "output": absolute(config.output)}
    return config.model_copy(update={**paths, **absolute_parser(config.parser)})


def parse_command(config: ParseConfig) -> Answer:
    """Parse a gold corpus; nothing is done if the output already has this parser's trees of this corpus.

    Sentences, words, labels and documents are kept; comments, sentence ids and multi-word tokens are not.

    Raises:
        ConfigError: when the output's name is not one of CoNLL-U, or it is the input or a file of other origin.
        InputError: when the corpus cannot be read or has no sentence.
        ModelError: when the parser cannot be loaded, or finds no trees.
        StoreError: when there is no space.
    """
    source, output = Path(config.input), Path(config.output)
    if not output.name.endswith(PARSED_SUFFIXES):
        raise ConfigError(f"output: expected a name that ends in {', '.join(PARSED_SUFFIXES)}, got {output.name!r}")
    if output.resolve() == source.resolve():
        raise ConfigError("output: expected another file than the input, got the same")
    documents = read_gold(source)
    require_sentences(documents, [str(source)])
    sentences = [sentence.words for document in documents for sentence in document]
    parser, digest = component_signature(parser_identity(config.parser)), file_sha256(source)
    words = sum(map(len, sentences))
    sizes = {"documents": len(documents), "sentences": len(sentences), "words": words}
    values = {"output": str(output), "parser": parser, **sizes}
    header = {PARSER_KEY: parser, SOURCE_KEY: digest}
    if output.exists():
        existing = read_header(output)
        if existing == header:
            text = f"{short_path(output)} already has these trees; nothing was done"
            return Answer(values={**values, "parsed": False}, text=text)
        if PARSER_KEY not in existing:
            raise ConfigError(
                f"output: expected a new file or one that an earlier parse has made, got {output}, which has no "
                "trees of a parser; choose another name"
            )
    loaded = load_parser(config.parser)
    started = time.monotonic()
    gold = [GoldDocument(name="", sentences=tuple(document), lines=()) for document in documents]
    write_gold(output, gold, form="conllu", header=header, analyses=_parse(loaded, sentences, config.parser))
    speed = words / (time.monotonic() - started)
    return Answer(
        values={**values, "parsed": True, "words_per_second": speed},
        text=f"{short_path(output)}: trees for {counted(len(sentences), 'sentence')} with {words:,} words "
        f"by {parser.partition('@')[0]}, {speed:,.0f} words/s",
    )


def _parse(parser: Parser, sentences: list[tuple[str, ...]], config: ParserConfig) -> list[tuple[WordAnalysis, ...]]:
    analyses: list[tuple[WordAnalysis, ...]] = []
    with counting("sentences", total=len(sentences)) as count:
        for start in range(0, len(sentences), _SENTENCES_A_CALL):
            chunk = sentences[start : start + _SENTENCES_A_CALL]
            analyses += parser.parse_words(chunk)
            if any(word.head is None for word in analyses[start]):
                raise ModelError(
                    f"parser.package: expected a parser that finds trees in any sentence, got {config.package}; name "
                    "one for the language of the corpus, such as parser_en"
                )
            count(len(chunk))
    return analyses
