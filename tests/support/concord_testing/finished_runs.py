"""Finished runs of invented documents, written through the real commit stage."""

import json
from collections.abc import Mapping, Sequence
from itertools import count, groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from concord.models.data.outputs import Prediction, known_numbers
from concord.models.labels import decode_spans
from concord.pipeline.config import AnnotateConfig, OutputConfig, ParserConfig
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, Document, ParsedDocument, ParsedSentence
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import SCHEMA_VERSION, Signature
from concord.pipeline.plan import Piece, Plan, Shard
from concord.pipeline.worker.commit_stage import CommitStage
from concord_testing import fakes

THRESHOLD = 0.35
_COLUMNS = {"trees": ("head", "deprel"), "tags": ("lemma", "upos", "xpos", "feats")}


def null_columns(left_out: Sequence[str]) -> dict[str, Any]:
    """Return None for each field of a word that is null where a parser leaves these parts out."""
    return dict.fromkeys((name for part in left_out for name in _COLUMNS[part]), None)


class _Row(NamedTuple):
    word: str
    label: str
    draft: str
    uncertainty: float
    probability: float | None


def write_run(
    output: Path,
    documents: Mapping[str, Sequence[str]],
    *,
    dead_letters: Sequence[DeadLetter] = (),
    documents_per_shard: int = 2,
    keep_text: bool = False,
    left_out: Sequence[str] = (),
    metas: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    **changes: Any,
) -> Path:
    """Write a run and return its output folder.

    Args:
        documents: the sentences of each document, by its id. A sentence is a string of words separated by spaces, each
            ``word``, or with up to four more fields, ``word|label|draft|uncertainty|probability``; ``~word`` follows
            without a space in the text. The second word of a sentence is the root and the head of all others. An
            entity's confidence is the lowest probability of its words, where none of them is null (``-``).
        dead_letters: of the first shard.
        keep_text: store the raw texts; the input file does not exist.
        left_out: what the parser left out: ``trees``, or these and ``tags``.
        metas: further fields of records, by the id of the document; each has a title.
        changes: fields of the plan with other values.
    """
    groups = [
        [document for _, document in group]
        for _, group in groupby(enumerate(documents.items()), key=lambda pair: pair[0] // documents_per_shard)
    ] or [[]]
    shards = [
        Shard(index=index, pieces=(_piece(len(group) + (len(dead_letters) if index == 0 else 0)),))
        for index, group in enumerate(groups)
    ]
    parser = ParserConfig.from_mapping(dict.fromkeys(left_out, False))
    plan = _plan(OutputConfig(path=str(output), keep_text=keep_text), shards, parser).model_copy(update=changes)
    folder = OutputFolder(output)
    folder.write_plan(plan)
    signature = Signature(parser="parser-x", tagger="tagger-x")
    stage = CommitStage(plan, folder, signature=signature, threshold=THRESHOLD)
    positions = count()
    for shard, group in zip(shards, groups, strict=True):
        annotated = [
            _annotated(name, sentences, next(positions), left_out, metas.get(name, {})) for name, sentences in group
        ]
        stage.run(shard, [*annotated, *(dead_letters if shard.index == 0 else ())])
    folder.finish(plan)
    return output


def _piece(records: int) -> Piece:
    return Piece(uri="/data/invented.jsonl", format="jsonl", start=0, end=1000, records=records)


def _plan(output: OutputConfig, shards: Sequence[Shard], parser: ParserConfig) -> Plan:
    return Plan(
        schema_version=SCHEMA_VERSION,
        config=AnnotateConfig(input="/data/invented.jsonl", output=output, parser=parser),
        parser=ComponentIdentity(name="parser_en", digest="1" * 64),
        tagger=ComponentIdentity(name="entities_multi", version="3", digest="2" * 64),
        tagger_folder=str(Path(output.path).parent / "tagger"),
        threads=1,
        sources=(),
        shards=tuple(shards),
        read=sum(shard.records for shard in shards),
    )


def _annotated(
    doc_id: str, sentences: Sequence[str], position: int, left_out: Sequence[str], meta: Mapping[str, Any]
) -> AnnotatedDocument:
    rows = [[_row(item) for item in sentence.split()] for sentence in sentences]
    text, parsed = "", []
    for sentence in rows:
        words = []
        for number, row in enumerate(sentence, 1):
            text += " " if text and not row.word.startswith("~") else ""
            root = min(2, len(sentence))
            head = 0 if number == root else root
            word = fakes.parsed_word(len(text), row.word.removeprefix("~"), head, upos="NOUN")
            word = word._replace(**null_columns(left_out))
            words.append(word)
            text += word.text
        parsed.append(ParsedSentence(words=tuple(words)))
    document = Document(
        doc_id=doc_id,
        text=text,
        source_uri="/data/invented.jsonl",
        source_position=position,
        meta=json.dumps({"title": f"On {doc_id}", **meta}),
    )
    return AnnotatedDocument(
        parsed=ParsedDocument(document=document, sentences=tuple(parsed)),
        predictions=tuple(_prediction(sentence) for sentence in rows),
    )


def _row(item: str) -> _Row:
    word, label, draft, uncertainty, probability = (item.split("|") + [""] * 4)[:5]
    known = None if probability == "-" else float(probability or 0.9)
    return _Row(word, label or "O", draft or label or "O", float(uncertainty or 0.01), known)


def _prediction(rows: Sequence[_Row]) -> Prediction:
    labels = tuple(row.label for row in rows)
    uncertainty = tuple(row.uncertainty for row in rows)
    spans = decode_spans(labels, "BIO")
    return Prediction(
        labels=labels,
        draft_labels=tuple(row.draft for row in rows),
        probabilities=tuple(row.probability for row in rows),
        margins=(0.8,) * len(rows),
        uncertainty=uncertainty,
        refined=tuple(value > THRESHOLD for value in uncertainty),
        spans=spans,
        confidences=tuple(_lowest(rows[span.start : span.end]) for span in spans),
    )


def _lowest(rows: Sequence[_Row]) -> float | None:
    known = known_numbers(row.probability for row in rows)
    return min(known) if len(known) == len(rows) else None
