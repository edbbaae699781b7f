"""Prepare gold corpora for a training: check them, write them in a clean form, and add dependency trees."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import field_validator

from concord.models.config import Config
from concord.models.data.sentence import Sentence, TreeError
from concord.models.errors import ConfigError, ModelError
from concord.models.labels import TOKENS, decode_spans
from concord.models.layers.tree_lstm import grow_forest
from concord.pipeline.config import ParserConfig
from concord.pipeline.corpora.conll import PARSER_KEY, SOURCE_KEY, read_header
from concord.pipeline.corpora.corpus_format import TAG_COLUMNS, CorpusScheme, Fault, GoldFormat, OnFault
from concord.pipeline.corpora.gold_corpus import (
    PARSED_SUFFIXES,
    SUFFIXES,
    GoldDocument,
    GoldForm,
    detect_format,
    read_corpus,
    read_gold,
    write_gold,
)
from concord.pipeline.errors import InputError
from concord.pipeline.identity import component_signature
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.resolve_parser import load_parser, parser_identity
from concord.pipeline.parsing.tokens import WordAnalysis
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import Answer, counted, indented, short_path, table
from concord.workflows.corpora import require_sentences
from concord.workflows.job_files import absolute, apply_overrides, make_paths_absolute
from concord.workflows.progress import counting

SHOWN_FAULTS = 20
SHOWN_LABELS = 60
# Removed from the names of splits, besides the suffixes of compression.
_ENDINGS = (".gz", ".zst", ".txt", ".conllu", ".conll", ".v4_gold_conll", "_gold_conll")
_SENTENCES_A_CALL = 1_000


def prepare_command(
    inputs: Sequence[Path], form: GoldFormat, *, output: Path | None, to: GoldForm | None, fix: bool
) -> Answer:
    """Check corpora and write them in a clean form, unless a fault is left; the exit code is then 1.

    Args:
        inputs: one for each split; a folder means all corpus files in it. The one with `train` in its name, else the
            first, determines the label scheme.
        output: folder that takes a file for each split; None only checks.
        to: if None, CoNLL-U for corpora with trees or parts of speech and CoNLL for others.
        fix: repair faults that have only one likely meaning.

    Raises:
        ConfigError: when the options do not fit the files, or two outputs would have the same name.
        InputError: when a file cannot be read, or a corpus has no sentence.
        StoreError: when there is no space.
    """
    if form.label_scheme == "auto" and form.label_column in TAG_COLUMNS:
        form = form.model_copy(update={"label_scheme": TOKENS.name})
    splits = _read_splits(inputs, form)
    faults = [fault for split in splits for fault in split.faults]
    left = [fault for fault in faults if not fix or fault.repaired is None]
    outputs = [] if output is None else _outputs(output, to, splits)
    if not left:
        for split, path in zip(splits, outputs, strict=False):
            _write(split, path, form)
    held = [_split_values(split, tokens=not form.read_scheme.has_entities) for split in splits]
    written = [] if left else outputs
    values = {
        "splits": held,
        "faults": [
            {"file": fault.path, "line": fault.line, "message": fault.message, "repaired": fault.repaired}
            for fault in faults
        ],
        "faults_left": len(left),
        "written": written,
    }
    described = _describe_faults(faults, len(left), fix=fix)
    if left and output is not None:
        described += "; nothing was written"
    places = table([("written", str(short_path(path))) for path in written])
    parts = [*_split_tables(held), described, places]
    return Answer(values=values, text="\n\n".join(filter(None, parts)), exit_code=1 if left else 0)


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
    make_paths_absolute(job)
    config = ParseConfig.from_mapping(job)
    return config.model_copy(update={"output": absolute(config.output)})


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Split:
    name: str
    files: tuple[Path, ...]
    documents: tuple[GoldDocument, ...]
    label_scheme: CorpusScheme
    faults: tuple[Fault, ...]

    @property
    def sentences(self) -> list[Sentence]:
        return [sentence for document in self.documents for sentence in document.sentences]


def _read_splits(inputs: Sequence[Path], form: GoldFormat) -> list[_Split]:
    """Read the training corpus, which determines the label scheme, and the others."""
    named = zip(_names(inputs), inputs, strict=True)
    (first, path), *others = sorted(named, key=lambda pair: "train" not in pair[0])
    train = _read(path, first, form)
    form = form.model_copy(update={"label_scheme": train.label_scheme})
    return [train, *(_read(path, name, form) for name, path in others)]


def _read(path: Path, name: str, form: GoldFormat) -> _Split:
    files = _corpus_files(path, form) if path.is_dir() else (path,)
    faults: list[Fault] = []
    corpora = []
    for file in files:
        corpora.append(read_corpus(file, form, faults.append))
        form = form.model_copy(update={"label_scheme": corpora[0].label_scheme})
    documents = [
        _with_sound_trees(document, file, faults.append)
        for file, corpus in zip(files, corpora, strict=True)
        for document in corpus.documents
    ]
    if not documents and not faults:
        raise InputError(f"{path}: expected a gold corpus with one sentence or more, got none")
    return _Split(
        name=name,
        files=files,
        documents=tuple(documents),
        label_scheme=corpora[0].label_scheme,
        faults=tuple(sorted(faults, key=lambda fault: (fault.path, fault.line))),
    )


def _corpus_files(folder: Path, form: GoldFormat) -> tuple[Path, ...]:
    """Return the files below a folder whose names are those of corpora, of the given format if there is one."""
    plain = GoldFormat()
    paths = tuple(
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and _plain_name(path).endswith(tuple(SUFFIXES))
        and form.format in (None, detect_format(path, plain))
    )
    if not paths:
        raise InputError(f"{folder}: expected files named {', '.join(SUFFIXES)} in the folder, got none")
    return paths


def _with_sound_trees(document: GoldDocument, path: Path, on_fault: OnFault) -> GoldDocument:
    """Remove invalid trees; several roots are valid."""
    sound = []
    for sentence, line in zip(document.sentences, document.lines, strict=True):
        try:
            if sentence.heads is not None:
                grow_forest([sentence])
            sound.append(sentence)
        except TreeError as error:
            on_fault(Fault(path=path, line=line, message=str(error), repaired="no tree"))
            sound.append(replace(sentence, heads=None, relations=None))
    return replace(document, sentences=tuple(sound))


def _names(paths: Sequence[Path]) -> list[str]:
    """Name the splits by their files, and by folders too where file names are not unique."""
    names = [_plain_name(path) for path in paths]
    for ending in reversed(_ENDINGS):
        names = [name.removesuffix(ending) for name in names]
    if len(set(names)) < len(names):
        names = [f"{path.absolute().parent.name}-{name}" for path, name in zip(paths, names, strict=True)]
    return names


def _plain_name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".zst")


def _outputs(folder: Path, to: GoldForm | None, splits: Sequence[_Split]) -> list[Path]:
    sentences = (sentence for split in splits for sentence in split.sentences)
    rich = any(sentence.heads is not None or sentence.tags is not None for sentence in sentences)
    suffix = to or ("conllu" if rich else "conll")
    paths = [folder / f"{split.name}.{suffix}" for split in splits]
    inputs = {file.resolve() for split in splits for file in split.files}
    for path in paths:
        if path.resolve() in inputs:
            raise ConfigError(f"output: {path} is one of the inputs; choose another folder")
        if paths.count(path) > 1:
            raise ConfigError(f"output: two corpora would be written to {path}; prepare them one by one")
    return paths


def _write(split: _Split, path: Path, form: GoldFormat) -> None:
    column = None
    if not form.read_scheme.has_entities:
        column = form.label_column if isinstance(form.label_column, str) else "Label"
    # Keep the record of the parser that made the trees.
    header = read_header(split.files[0]) if len(split.files) == 1 and ".conllu" in split.files[0].name else {}
    written_form: GoldForm = "conllu" if path.suffix == ".conllu" else "conll"
    write_gold(path, split.documents, form=written_form, label_column=column, header=header)


def _split_values(split: _Split, *, tokens: bool) -> dict[str, Any]:
    """Return what a split holds; ``labels`` counts the entities of each type, or the words of each label."""
    labels = [sentence.labels or () for sentence in split.sentences]
    if tokens:
        counts = Counter(label for found in labels for label in found)
    else:
        counts = Counter(span.label for found in labels for span in decode_spans(found, "BIO"))
    return {
        "name": split.name,
        "files": split.files,
        "label_scheme": split.label_scheme,
        "documents": sum(document.name is not None for document in split.documents) or None,
        "sentences": len(labels),
        "words": sum(map(len, labels)),
        "labels": dict(counts.most_common()),
    }


def _split_tables(splits: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Format the sizes of the splits, and their most frequent labels."""
    header = ("corpus", "labels in", "documents", "sentences", "words", "labels")
    keys = ("name", "label_scheme", "documents", "sentences", "words")
    sizes = [(*(split[key] for key in keys), sum(split["labels"].values())) for split in splits]
    counts = [Counter(split["labels"]) for split in splits]
    total = sum(counts, Counter[str]())
    rows = [(label, *(count[label] for count in counts)) for label, _ in total.most_common(SHOWN_LABELS)]
    rest = [f"and {len(total) - SHOWN_LABELS:,} more: --json"] if len(total) > SHOWN_LABELS else []
    labels = "\n".join([table(rows, header=("label", *(split["name"] for split in splits))), *rest])
    return table(sizes, header=header, right=range(2, len(header))), labels


def _describe_faults(faults: Sequence[Fault], left: int, *, fix: bool) -> str:
    if not faults:
        return "no fault"
    lines = [
        f"{fault} -> {fault.repaired}" if fault.repaired is not None else str(fault) for fault in faults[:SHOWN_FAULTS]
    ]
    if len(faults) > SHOWN_FAULTS:
        lines.append(f"and {len(faults) - SHOWN_FAULTS:,} more: --json")
    repairable = sum(fault.repaired is not None for fault in faults)
    if fix:
        ending = f"{counted(repairable, 'fault')} repaired, {left:,} left"
    else:
        ending = f"--fix repairs {repairable:,} of them, as the arrow says"
    return "\n".join([counted(len(faults), "fault"), indented("\n".join(lines)), ending])


def _parse(parser: Parser, sentences: list[tuple[str, ...]], config: ParserConfig) -> list[tuple[WordAnalysis, ...]]:
    analyses: list[tuple[WordAnalysis, ...]] = []
    with counting("sentences", total=len(sentences)) as count:
        for start in range(0, len(sentences), _SENTENCES_A_CALL):
            chunk = sentences[start : start + _SENTENCES_A_CALL]
            analyses += parser.parse_words(chunk)
            if any(word.head is None for word in analyses[start]):
                raise ModelError(
                    f"parser.package: expected a parser that finds trees, got {config.package}; name "
                    "one for the language of the corpus, such as parser_en"
                )
            count(len(chunk))
    return analyses
