"""Make a folder to begin with: a configuration for small data, samples in each accepted form, and the commands."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path

import yaml

from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.models.labels import Span, encode_spans
from concord.models.words.encoder_config import EncoderConfig, encoder_available
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.corpora.write_corpus import write_gold
from concord.workflows.console import Answer, table

TYPE = re.compile(r"[^\W_][\w-]*")
_NAMES_EACH = 8
_TRAIN_NAMES = 6
_FIRST = ("Zor", "Mer", "Tal", "Vel", "Qui", "Bra", "Nor", "Fen", "Lus", "Dra", "Kel", "Pom")
_LAST = ("vex", "idor", "una", "atra", "ston", "mel", "bin", "gar", "dix", "olo")
_TEMPLATES = (
    "The {kind} NAME is new .",
    "They compared the {kind} NAME with another {kind} .",
    "Nobody knew the {kind} NAME before .",
    "Is NAME a {kind} ?",
    "A {kind} such as NAME is rare .",
    "We wrote about NAME , a {kind} , last week .",
)
_PLAIN = ("Nothing else happened .", "The report was short , and few people read it .")

_CONFIG: dict[str, object] = {
    "scheme": "BIOES",
    "lowercase": True,
    "lstm": {"hidden": 64, "layers": 1, "input_dropout": 0.1, "recurrent_dropout": 0.1, "output_dropout": 0.25},
    "samples": 8,
    "label_dimension": 32,
    "two_stream": {"heads": 4, "head_dimension": 16, "layers": 1, "dropout": 0.2, "attention_dropout": 0.1},
    "memory": {"key": "lower", "slots": 10, "dropout": 0.1},
}
_WORDS = {
    "word_dimension": 50,
    "word_dropout": 0.3,
    "characters": {"embedding_dimension": 25, "filters": 40, "widths": [3], "dropout": 0.25},
    "dropout": 0.4,
}
_ENCODED = {"encoder_dimension": 128, "encoder_dropout": 0.2}
_FIT: dict[str, object] = {
    "epochs": 60,
    "patience": 12,
    "seed": 1,
    "batch_sentences": 4,
    "clip_norm": 5.0,
    "optimizers": {
        "stage_one": {"kind": "adam", "learning_rate": 0.002, "schedule": "linear", "warmup": 0.1},
        "stage_two": {"kind": "adam", "learning_rate": 0.001, "schedule": "linear", "warmup": 0.1},
    },
}
_CONFIG_HEAD = """\
# Doc-UANet on small data{over}. Five trainings, each without a fifth of the documents, choose the epoch and the
# threshold above which stage two decides; each stops after `patience` epochs without a better score. Then one training
# reads all documents. With much data, name a dev set instead: `dev: corpora/dev.conll`. Paths are relative to the
# current folder.
"""
_GATE = """\
# What a version must show before `concord promote` makes it the champion; other keys keep their defaults.
data: [corpora/test.conll]    # documents that no training has read
min_f1: 20.0                  # of the first champion, in percent: raise it for your own corpora
throughput_ratio: 0.5
"""
COMMANDS = (
    (
        "check the corpora",
        "concord prepare corpora/train.conll corpora/more.conllu corpora/test.conll",
    ),
    ("train, and register a version", "concord train train.yaml -o runs/first"),
    ("score it", "concord evaluate runs/first/bundle --data corpora/test.conll --train corpora/train.conll"),
    (
        "train with a list of terms as well",
        "concord train train.yaml -o runs/terms --set data.terms=terms.jsonl --set data.unlabelled=corpora/texts.conll",
    ),
    (
        "annotate texts, with the list",
        "concord annotate texts -o out/texts --model runs/first/bundle --set tagger.terms=terms.jsonl",
    ),
    ("make the version the champion", "concord promote {name} 1 --gate promote.yaml"),
)
_README = """\
# {name}

Entities of the types {types}. Run the commands in this folder, in this order:

```
{commands}
```

| file | what to put there |
|---|---|
| `corpora/train.conll` | labelled sentences: a word and its label a line, an empty line after each sentence |
| `corpora/more.conllu` | the same as CoNLL-U, with `NER=B-{first}` in the last column |
| `corpora/test.conll` | documents that no training reads: the score to believe, and the gate of `concord promote` |
| `corpora/texts.conll` | sentences without labels, in which the list of terms labels what it knows |
| `terms.jsonl` | terms and patterns, one a line, in the form of spaCy's EntityRuler |
| `texts/` | what to annotate: text, JSON Lines, HTML, CSV or Parquet files |

The sentences here are made up, so that every command works at once; replace them by your own. A label is `B-{first}`
for the first word of a {first}, `I-{first}` for its other words, and `O` for words outside. Documents, which the tagger
reads as a whole, begin with `-DOCSTART-`, in CoNLL-U with `# newdoc`. `concord review` finds the sentences that are
worth labelling next.
"""


def run(folder: Path, types: Sequence[str], *, encoder: bool | None = None) -> Answer:
    """Fill a new or empty folder.

    Args:
        encoder: whether the tagger reads the frozen encoder; None if it is installed.

    Raises:
        ConfigError: when the folder holds something, or a type is no name of one or is named twice.
    """
    _check(folder, types)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpora").mkdir()
    (folder / "texts").mkdir()
    encoded = encoder_available(EncoderConfig()) if encoder is None else encoder
    name = re.sub(r"[^\w-]+", "-", folder.absolute().name).strip("-") or "labels"
    names = _names(types)
    _write_corpora(folder / "corpora", names)
    _write_texts(folder / "texts", names)
    (folder / "terms.jsonl").write_text(_terms(names), encoding="utf-8")
    (folder / "train.yaml").write_text(_train_config(name, encoded=encoded), encoding="utf-8")
    (folder / "promote.yaml").write_text(_GATE, encoding="utf-8")
    commands = [(command.format(name=name), purpose) for purpose, command in COMMANDS]
    shown = {"name": name, "types": ", ".join(types), "first": types[0]}
    listed = "\n".join(f"{command}  # {purpose}" for command, purpose in commands)
    (folder / "README.md").write_text(_README.format(commands=listed, **shown), encoding="utf-8")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    values = {"folder": str(folder), "encoder": encoded, "files": files, "commands": [one for one, _ in commands]}
    rows = [("folder", str(folder)), ("files", ", ".join(files)), ("tagger", f"doc_uanet{_over(encoded)}")]
    steps = "\n".join([f"cd {folder}", *(command for command, _ in commands)])
    return Answer(values=values, text=f"{table(rows)}\n\nREADME.md lists the commands in order:\n\n{steps}")


def _check(folder: Path, types: Sequence[str]) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: expected a new or empty folder, got one with files; choose another")
    if not types or len(set(types)) < len(types):
        raise ConfigError(f"--types: expected different entity types, such as DRUG,DOSE, got {','.join(types)!r}")
    for kind in types:
        if not TYPE.fullmatch(kind):
            raise ConfigError(f"--types: expected names of letters, digits, - and _, such as DRUG,DOSE, got {kind!r}")


def _over(encoded: bool) -> str:
    return " over frozen MiniLM features" if encoded else " without an encoder, which is not installed"


def _train_config(name: str, *, encoded: bool) -> str:
    words = {**_WORDS, **(_ENCODED if encoded else {})}
    encoder = {"encoder": {"source": EncoderConfig().source, "last_layers": 4}} if encoded else {}
    model = {**_CONFIG, **encoder, "draft_representation": words, "refine_representation": words}
    values = {
        "tagger": "doc_uanet",
        "register_as": name,
        "data": {
            "train": ["corpora/train.conll", "corpora/more.conllu"],
            "folds": 5,
            "test": "corpora/test.conll",
        },
        "profiles": {"small": {"model": model, "fit": _FIT}},
    }
    # A copy without shared objects, which YAML would write as aliases.
    text = yaml.safe_dump(json.loads(json.dumps(values)), sort_keys=False)
    return f"{_CONFIG_HEAD.format(over=_over(encoded))}{text}"


def _names(types: Sequence[str]) -> dict[str, list[str]]:
    """Return invented names for each type; every third has two words."""
    pairs = ((first + last) for last, first in product(_LAST, _FIRST))
    endless: Iterator[str] = (name for name in [*pairs] * (1 + len(types)))
    found = {}
    for kind in types:
        single = list(islice(endless, _NAMES_EACH + _NAMES_EACH // 3 + 1))
        seconds = iter(single[_NAMES_EACH:])
        found[kind] = [
            f"{name} {next(seconds)}" if number % 3 == 2 else name for number, name in enumerate(single[:_NAMES_EACH])
        ]
    return found


def _sentence(template: str, kind: str, name: str) -> Sentence:
    words: list[str] = []
    spans = []
    for word in template.format(kind=kind.lower()).split():
        if word == "NAME":
            spans.append(Span(len(words), len(words) + len(name.split()), kind))
            words += name.split()
        else:
            words.append(word)
    return Sentence(words=tuple(words), labels=encode_spans(spans, len(words), "BIO"))


def _documents(names: dict[str, list[str]], numbers: Sequence[int], *, shift: int) -> list[GoldDocument]:
    """Return one document for each number, with a sentence about the name of this number of each type."""
    documents = []
    for number in numbers:
        sentences = [
            _sentence(_TEMPLATES[(number + place + shift + turn) % len(_TEMPLATES)], kind, names[kind][number])
            for place, kind in enumerate(names)
            for turn in (0, 2)
        ]
        sentences.append(Sentence(words=(words := tuple(_PLAIN[number % 2].split())), labels=("O",) * len(words)))
        documents.append(GoldDocument(name=f"sample-{number}", sentences=tuple(sentences), lines=(1,) * len(sentences)))
    return documents


def _write_corpora(folder: Path, names: dict[str, list[str]]) -> None:
    half = _TRAIN_NAMES // 2
    write_gold(folder / "train.conll", _documents(names, range(half), shift=0), form="conll")
    write_gold(folder / "more.conllu", _documents(names, range(half, _TRAIN_NAMES), shift=0), form="conllu")
    write_gold(folder / "test.conll", _documents(names, (1, 4, _TRAIN_NAMES + 1), shift=3), form="conll")
    texts = [
        GoldDocument(
            name=document.name,
            sentences=tuple(Sentence(words=one.words, labels=("O",) * len(one.words)) for one in document.sentences),
            lines=document.lines,
        )
        for document in _documents(names, range(_NAMES_EACH), shift=4)
    ]
    write_gold(folder / "texts.conll", texts, form="conll")


def _write_texts(folder: Path, names: dict[str, list[str]]) -> None:
    documents = _documents(names, range(_NAMES_EACH), shift=2)
    joined = [" ".join(" ".join(one.words) for one in document.sentences) for document in documents]
    texts = [re.sub(r" ([.,?])", r"\1", text) for text in joined]
    (folder / "note.txt").write_text(f"{texts[0]}\n", encoding="utf-8")
    lines = (json.dumps({"id": f"note-{number}", "text": text}) for number, text in enumerate(texts[1:], 1))
    (folder / "notes.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _terms(names: dict[str, list[str]]) -> str:
    terms: list[dict[str, object]] = [
        {"label": kind, "pattern": name} for kind, found in names.items() for name in found[1::2]
    ]
    kind, (first, *_) = next(iter(names.items()))
    terms.append({"label": kind, "pattern": first, "phrase_matcher_attr": "LOWER"})
    terms.append({"label": kind, "pattern": [{"TEXT": {"REGEX": f"^{first[:3]}"}}, {"IS_DIGIT": True, "OP": "?"}]})
    return "".join(f"{json.dumps(term)}\n" for term in terms)
