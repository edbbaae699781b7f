"""Check gold corpora before a training: faults, counts, overlap of splits; and write them in a clean form."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from concord.models.data.sentence import Sentence, TreeError
from concord.models.errors import ConfigError
from concord.models.evaluation.metrics import name_key
from concord.models.labels.schemes import TOKENS
from concord.models.labels.spans import decode_spans
from concord.models.layers.tree_lstm import grow_forest
from concord.pipeline.corpora.conllu import read_header
from concord.pipeline.corpora.corpus_format import TAG_COLUMNS, CorpusScheme, Fault, GoldFormat, OnFault
from concord.pipeline.corpora.read_corpus import SUFFIXES, GoldDocument, detect_format, read_corpus
from concord.pipeline.corpora.write_corpus import GoldForm, write_gold
from concord.pipeline.errors import InputError
from concord.workflows.console import INLINE, Answer, counted, indented, short_path, table

SHOWN_FAULTS = 20
SHOWN_TYPES = 60
# Removed from the names of splits, besides the suffixes of compression.
_ENDINGS = (".gz", ".zst", ".txt", ".conllu", ".conll", ".v4_gold_conll", "_gold_conll")

Names = set[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareJob:
    """The corpora to check, and what to write.

    Attributes:
        inputs: one for each split; a folder means all corpus files in it. The others are compared with the training
            corpus, which is the one with `train` in its name, else the first.
        output: folder that takes a file for each split; None only checks.
        to: if None, CoNLL-U for corpora with trees or parts of speech and CoNLL for others.
        fix: repair faults that have only one likely meaning.
    """

    inputs: Sequence[Path]
    form: GoldFormat
    output: Path | None = None
    to: GoldForm | None = None
    fix: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityCounts:
    """The entities of a split; those that recur in their document, and those whose name the training corpus lacks."""

    entities: int
    types: Mapping[str, int]
    recurring_entities: int | None
    unseen_entities: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCounts:
    """The token labels of a split, and how many of its words the training corpus lacks."""

    labels: Mapping[str, int]
    unseen_words: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitReport:
    """The counts of a split; its sentences that occur word for word in earlier ones, by their names."""

    name: str
    files: Sequence[Path]
    label_scheme: CorpusScheme
    documents: int | None
    sentences: int
    words: int
    counts: EntityCounts | TokenCounts = field(metadata=INLINE)
    shared_sentences: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareReport:
    """What is in corpora, what is wrong with them, and the files that were written."""

    splits: Sequence[SplitReport]
    faults: Sequence[Mapping[str, object]]
    faults_left: int
    written: Sequence[Path]


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


def prepare_command(job: PrepareJob) -> Answer:
    """Check corpora and write them in a clean form, unless a fault is left; the exit code is then 1.

    Raises:
        ConfigError: when the options do not fit the files, or two outputs would have the same name.
        InputError: when a file cannot be read, or a corpus has no sentence.
        StoreError: when there is no space.
    """
    form = job.form
    if form.label_scheme == "auto" and form.label_column in TAG_COLUMNS:
        form = form.model_copy(update={"label_scheme": TOKENS.name})
    splits = _read_splits(job, form)
    faults = [fault for split in splits for fault in split.faults]
    left = [fault for fault in faults if not job.fix or fault.repaired is None]
    outputs = _outputs(job, splits)
    if not left:
        for split, path in zip(splits, outputs, strict=False):
            _write(split, path, form)
    report = PrepareReport(
        splits=_describe_splits(splits, tokens=not form.read_scheme.has_entities),
        faults=[
            {"file": str(fault.path), "line": fault.line, "message": fault.message, "repaired": fault.repaired}
            for fault in faults
        ],
        faults_left=len(left),
        written=[] if left else outputs,
    )
    return Answer.of(report, text=_describe(report, faults, job), exit_code=1 if left else 0)


def _read_splits(job: PrepareJob, form: GoldFormat) -> list[_Split]:
    """Read the training corpus, which determines the label scheme, and the others."""
    named = zip(_names(job.inputs), job.inputs, strict=True)
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


def _outputs(job: PrepareJob, splits: Sequence[_Split]) -> list[Path]:
    if job.output is None:
        return []
    sentences = (sentence for split in splits for sentence in split.sentences)
    rich = any(sentence.heads is not None or sentence.tags is not None for sentence in sentences)
    suffix = job.to or ("conllu" if rich else "conll")
    paths = [job.output / f"{split.name}.{suffix}" for split in splits]
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


def _describe_splits(splits: Sequence[_Split], *, tokens: bool) -> list[SplitReport]:
    """Compare each split with the first, which is the training corpus, and with those before it."""
    train = splits[0]
    known_names = {name for document in train.documents for _, name in _mentions(document)} if not tokens else set()
    known_words = {word for sentence in train.sentences for word in sentence.words}
    reports = []
    for number, split in enumerate(splits):
        sentences = split.sentences
        if tokens:
            counts: EntityCounts | TokenCounts = _count_tokens(split, known_words if number else None)
        else:
            counts = _count_entities(split, known_names if number else None)
        report = SplitReport(
            name=split.name,
            files=split.files,
            label_scheme=split.label_scheme,
            documents=sum(document.name is not None for document in split.documents) or None,
            sentences=len(sentences),
            words=sum(len(sentence.words) for sentence in sentences),
            counts=counts,
            shared_sentences=_shared_sentences(split, splits[:number]),
        )
        reports.append(report)
    return reports


def _count_tokens(split: _Split, known: set[str] | None) -> TokenCounts:
    labels = Counter(label for sentence in split.sentences for label in sentence.labels or ())
    unseen = sum(word not in (known or ()) for sentence in split.sentences for word in sentence.words)
    return TokenCounts(labels=dict(labels.most_common()), unseen_words=unseen if known is not None else None)


def _count_entities(split: _Split, known: Names | None) -> EntityCounts:
    types = Counter(kind for document in split.documents for kind, _ in _mentions(document))
    counts = [Counter(name for _, name in _mentions(document)) for document in split.documents]
    in_documents = any(document.name is not None for document in split.documents)
    recurring = sum(count for names in counts for count in names.values() if count > 1)
    unseen = sum(count for names in counts for name, count in names.items() if name not in (known or ()))
    return EntityCounts(
        entities=types.total(),
        types=dict(types.most_common()),
        recurring_entities=recurring if in_documents else None,
        unseen_entities=unseen if known is not None else None,
    )


def _mentions(document: GoldDocument) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Yield type and name of every entity; names are equal when their lower-cased words are."""
    for sentence in document.sentences:
        for span in decode_spans(sentence.labels or (), "BIO"):
            yield span.label, name_key(sentence.words[span.start : span.end])


def _shared_sentences(split: _Split, others: Sequence[_Split]) -> dict[str, int]:
    """Count the sentences that occur word for word in another split."""
    known = {other.name: {sentence.words for sentence in other.sentences} for other in others}
    return {name: sum(sentence.words in words for sentence in split.sentences) for name, words in known.items()}


def _describe(report: PrepareReport, faults: Sequence[Fault], job: PrepareJob) -> str:
    splits = report.splits
    shared = [
        f"{count:,} of {split.sentences:,} sentences of {split.name} occur word for word in {other}"
        f" ({100 * count / split.sentences:.2f} %)"
        for split in splits
        for other, count in split.shared_sentences.items()
        if count
    ]
    written = [("written", str(short_path(path))) for path in report.written]
    tables = [_split_table(splits), _type_table(splits), "\n".join(shared)]
    parts = [*tables, _describe_faults(faults, report.faults_left, job), table(written)]
    return "\n\n".join(filter(None, parts))


def _split_table(splits: Sequence[SplitReport]) -> str:
    rows: list[Sequence[object]] = []
    header: Sequence[str] = ()
    for split in splits:
        sizes, counts = (split.documents, split.sentences, split.words), split.counts
        if isinstance(counts, TokenCounts):
            header = ("corpus", "documents", "sentences", "words", "labels", "unseen words")
            rows.append((split.name, *sizes, len(counts.labels), _share(counts.unseen_words, split.words)))
        else:
            header = ("corpus", "labels in", "documents", "sentences", "words", "entities", "recurring", "unseen")
            shares = [_share(part, counts.entities) for part in (counts.recurring_entities, counts.unseen_entities)]
            rows.append((split.name, split.label_scheme, *sizes, counts.entities, *shares))
    return table(rows, header=header, right=range(header.index("documents"), len(header)))


def _type_table(splits: Sequence[SplitReport]) -> str:
    tokens = isinstance(splits[0].counts, TokenCounts)
    counts = [part.labels if isinstance(part := split.counts, TokenCounts) else part.types for split in splits]
    total = sum(map(Counter, counts), Counter[str]())
    rows = [(kind, *(numbers.get(kind, 0) for numbers in counts)) for kind, _ in total.most_common(SHOWN_TYPES)]
    header = ("label" if tokens else "type", *(split.name for split in splits))
    rest = [f"and {len(total) - SHOWN_TYPES:,} more: --json"] if len(total) > SHOWN_TYPES else []
    return "\n".join([table(rows, header=header, right=range(1, len(header))), *rest])


def _share(part: int | None, whole: int) -> str:
    return "-" if part is None or not whole else f"{100 * part / whole:.1f} %"


def _describe_faults(faults: Sequence[Fault], left: int, job: PrepareJob) -> str:
    if not faults:
        return "no fault"
    lines = [
        f"{fault} -> {fault.repaired}" if fault.repaired is not None else str(fault) for fault in faults[:SHOWN_FAULTS]
    ]
    if len(faults) > SHOWN_FAULTS:
        lines.append(f"and {len(faults) - SHOWN_FAULTS:,} more: --json")
    repairable = sum(fault.repaired is not None for fault in faults)
    if job.fix:
        ending = f"{counted(repairable, 'fault')} repaired, {left:,} left"
    else:
        ending = f"--fix repairs {repairable:,} of them, as the arrow says"
    nothing = "; nothing was written" if left and job.output is not None else ""
    return "\n".join([counted(len(faults), "fault"), indented("\n".join(lines)), ending + nothing])
