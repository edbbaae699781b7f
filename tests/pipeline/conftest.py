"""A finished run of invented documents, written through the real commit stage."""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import pytest

from models.labels import decode_spans
from models.outputs import Prediction
from pipeline.commits import RunFolder
from pipeline.config import AnnotateConfig
from pipeline.planning import ComponentIdentity, Plan
from pipeline.records import (
    AnnotatedDocument,
    DeadLetter,
    Document,
    ParsedDocument,
    ParsedSentence,
    ParsedWord,
    Piece,
    Shard,
)
from pipeline.schema import SCHEMA_VERSION
from pipeline.stages import CommitStage

THRESHOLD = 0.35

FinishRun = Callable[..., Path]


@pytest.fixture
def finish_run(tmp_path: Path) -> FinishRun:
    """Give a function that writes a run and gives its output folder.

    It takes documents (name to sentences), dead letters and how many documents a shard holds. A sentence is a string
    of words parted by blanks, each ``word``, ``word|label``, ``word|label|draft`` or ``word|label|draft|uncertainty``.
    The second word of a sentence is the root, every other hangs on it.
    """

    def finish(
        documents: dict[str, Sequence[str]], *, letters: Sequence[DeadLetter] = (), documents_a_shard: int = 2
    ) -> Path:
        output = tmp_path / "out"
        groups = [
            [document for _, document in group]
            for _, group in groupby(enumerate(documents.items()), key=lambda pair: pair[0] // documents_a_shard)
        ] or [[]]
        shards = [
            Shard(index=index, pieces=(_piece(len(group) + (len(letters) if index == 0 else 0)),))
            for index, group in enumerate(groups)
        ]
        plan = _plan(tmp_path, shards)
        folder = RunFolder(output)
        folder.freeze(plan)
        commit = CommitStage(
            folder, generation=0, parser="parser-x", tagger="tagger-x", calibration="none", threshold=THRESHOLD
        )
        for shard, group in zip(shards, groups, strict=True):
            annotated = [_annotated(name, sentences) for name, sentences in group]
            commit(shard, [*annotated, *(letters if shard.index == 0 else ())])
        folder.finish(plan)
        return output

    return finish


def _piece(records: int) -> Piece:
    return Piece(uri="/data/invented.jsonl", format="jsonl", start=0, end=1000, records=records)


def _plan(folder: Path, shards: Sequence[Shard]) -> Plan:
    return Plan(
        schema_version=SCHEMA_VERSION,
        config=AnnotateConfig(input="/data/invented.jsonl", output=str(folder / "out")),
        parser=ComponentIdentity(name="parser_en", digest="1" * 64),
        tagger=ComponentIdentity(name="entities_en", version="3", digest="2" * 64),
        tagger_folder=str(folder / "tagger"),
        threads=1,
        sources=(),
        shards=tuple(shards),
        read=sum(shard.records for shard in shards),
    )


def _annotated(doc_id: str, sentences: Sequence[str]) -> AnnotatedDocument:
    rows = [[_row(item) for item in sentence.split()] for sentence in sentences]
    text = " ".join(word for sentence in rows for word, *_ in sentence)
    parsed, place = [], 0
    for sentence in rows:
        words = []
        for number, (word, *_) in enumerate(sentence, 1):
            words.append(_word(word, place, number, root=min(2, len(sentence))))
            place += len(word) + 1
        parsed.append(ParsedSentence(words=tuple(words)))
    document = Document(
        doc_id=doc_id,
        text=text,
        source_uri="/data/invented.jsonl",
        source_position=0,
        meta=json.dumps({"title": f"On {doc_id}"}),
    )
    return AnnotatedDocument(
        parsed=ParsedDocument(document=document, sentences=tuple(parsed)),
        predictions=tuple(_prediction(sentence) for sentence in rows),
    )


def _row(item: str) -> tuple[str, str, str, float]:
    word, label, draft, uncertainty = (item.split("|") + [""] * 3)[:4]
    return word, label or "O", draft or label or "O", float(uncertainty or 0.01)


def _word(text: str, place: int, number: int, *, root: int) -> ParsedWord:
    return ParsedWord(
        start_char=place,
        end_char=place + len(text),
        text=text,
        word=text,
        lemma=text.lower(),
        upos="NOUN",
        xpos=None,
        feats=None,
        head=0 if number == root else root,
        deprel="root" if number == root else "dep",
    )


def _prediction(rows: Sequence[tuple[str, str, str, float]]) -> Prediction:
    labels = tuple(label for _, label, _, _ in rows)
    uncertainty = tuple(value for *_, value in rows)
    spans = decode_spans(labels, "BIO")
    return Prediction(
        labels=labels,
        draft_labels=tuple(draft for _, _, draft, _ in rows),
        probabilities=(0.9,) * len(rows),
        margins=(0.8,) * len(rows),
        uncertainty=uncertainty,
        refined=tuple(value > THRESHOLD for value in uncertainty),
        spans=spans,
        confidences=(0.8,) * len(spans),
    )
