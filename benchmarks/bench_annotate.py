"""Annotate a whole collection with the default models and check the tables against the raw text and plain Stanza.

Command: python benchmarks/bench_annotate.py --input ../shared/data/text/us_presidents.jsonl.zst -o out/bench

The output folder is new or holds a run of the same command, whose rates are then read from its stats.json. The checks
use no code of Concord: the tables are read with pyarrow, the input with json, and the tokens are compared with those of
a plain stanza.Pipeline of the tokenizer and the multi-word expander.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import stanza
import torch
from concord_runs import concord, model_options, read_table
from corpora import read_texts
from environment import environment

PARSER_FOLDER = Path(__file__).resolve().parents[1] / "models" / "pretrained" / "parser_en"
OUTCOMES = ("read", "annotated", "unchanged", "dead_letters")


@dataclass(frozen=True, slots=True)
class Token:
    """A row of the table of tokens."""

    start: int
    end: int
    text: str
    word: str


def read_tokens(output: Path) -> Iterator[tuple[str, list[Token]]]:
    """Yield each document's tokens."""
    table = read_table(output, "tokens", ("doc_id", "start_char", "end_char", "text", "word"))
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    for doc_id, group in groupby(rows, key=lambda row: row[0]):
        yield doc_id, [Token(*row[1:]) for row in group]


def check_offsets(text: str, tokens: Sequence[Token]) -> Counter[str]:
    """Count a document's tokens, its code points that are not white space, and the faults of its offsets."""
    faults: Counter[str] = Counter(dict.fromkeys(("out_of_order", "overlapping", "wrong_slice", "uncovered"), 0))
    covered = bytearray(len(text))
    before = Token(0, 0, "", "")
    for token in tokens:
        # Words of a multi-word token that is not their concatenation share its offsets.
        if (token.start, token.end) != (before.start, before.end):
            faults["out_of_order"] += token.start < before.start or token.end <= token.start
            faults["overlapping"] += any(covered[token.start : token.end])
        faults["wrong_slice"] += text[token.start : token.end] != token.text
        covered[token.start : token.end] = b"\x01" * (token.end - token.start)
        before = token
    faults["uncovered"] = sum(
        not is_covered and not char.isspace() for is_covered, char in zip(covered, text, strict=True)
    )
    return Counter(tokens=len(tokens), visible=sum(not char.isspace() for char in text), **faults)


def compare_with_stanza(nlp: Any, text: str, tokens: Sequence[Token]) -> Counter[str]:
    """Count Stanza's tokens and words, and those that equal ours."""
    theirs = [token for sentence in nlp(text).sentences for token in sentence.tokens]
    words = [
        (word.start_char, word.end_char, word.text)
        if word.start_char is not None
        else (token.start_char, token.end_char, word.text)
        for token in theirs
        for word in token.words
    ]
    ours = [(token.start, token.end, token.word) for token in tokens]
    boundaries = {token.start for token in tokens}, {token.end for token in tokens}
    return Counter(
        documents=1,
        documents_equal=words == ours,
        stanza_tokens=len(theirs),
        our_slice_equals_token_text=sum(
            token.start_char in boundaries[0]
            and token.end_char in boundaries[1]
            and _solid(text[token.start_char : token.end_char]) == _solid(token.text)
            for token in theirs
        ),
        stanza_words=len(words),
        words_equal=sum((Counter(words) & Counter(ours)).values()),
        words_only_ours=sum((Counter(ours) - Counter(words)).values()),
    )


def count_stage_two(output: Path) -> dict[str, float]:
    """Count the sentences and tokens that stage two refined."""
    table = read_table(output, "tokens", ("doc_id", "sent_id", "ner", "draft_ner", "refined"))
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    sentences = {row[:2] for row in rows}
    needy = {row[:2] for row in rows if row[4]}
    refined = sum(row[4] for row in rows)
    return {
        "sentences": len(sentences),
        "sentences_refined": len(needy),
        "sentences_refined_share": round(len(needy) / len(sentences), 4),
        "tokens_refined": refined,
        "tokens_refined_share": round(refined / len(rows), 5),
        "tokens_changed": sum(ner != draft for *_, ner, draft, _ in rows),
    }


def account(values: Mapping[str, Any], output: Path, records: int) -> dict[str, object]:
    """Compare the run's own counts with the lines of the input and the rows of the tables."""
    documents = read_table(output, "documents", ("doc_id",)).column("doc_id").to_pylist()
    dead_letters = read_table(output, "errors", ("stage",)).num_rows
    counts = {name: values[name] for name in OUTCOMES}
    return {
        **counts,
        "records_in_the_input": records,
        "rows_of_documents": len(documents),
        "distinct_documents": len(set(documents)),
        "rows_of_errors": dead_letters,
        "holds": counts["read"] == records == len(set(documents)) + dead_letters
        and counts["read"] == counts["annotated"] + counts["unchanged"] + counts["dead_letters"],
    }


def check(arguments: argparse.Namespace, texts: Mapping[str, str]) -> dict[str, object]:
    """Check every document's offsets, and compare a sample with plain Stanza."""
    torch.set_num_threads(arguments.threads)
    nlp = stanza.Pipeline(
        "en",
        dir=str(PARSER_FOLDER),
        package="default",
        processors="tokenize,mwt",
        download_method=None,
        use_gpu=False,
        verbose=False,
    )
    every = max(1, len(texts) // arguments.plain_documents) if arguments.plain_documents else 1
    offsets: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    started = time.monotonic()
    for number, (doc_id, tokens) in enumerate(read_tokens(arguments.output)):
        offsets.update(check_offsets(texts[doc_id], tokens))
        if number % every == 0:
            compared.update(compare_with_stanza(nlp, texts[doc_id], tokens))
    return {
        "offsets": dict(offsets),
        "plain_stanza": dict(compared),
        "check_seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Run, check, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", "-o", type=Path, required=True)
    parser.add_argument("--model", help="the default one by default")
    parser.add_argument("--limit", type=int, help="only this many records, for a trial")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain-documents", type=int, help="compare about this many with plain Stanza; all by default")
    arguments = parser.parse_args()
    limit = ["--limit", str(arguments.limit)] if arguments.limit else []
    run = concord(
        "annotate",
        str(arguments.input),
        *("--output", str(arguments.output)),
        *("--set", f"executor.threads={arguments.threads}"),
        *model_options(arguments.model),
        *limit,
    )
    if run.exit_code != 0:
        sys.exit(f"concord annotate: exit code {run.exit_code}: {run.values}")
    verified = concord("verify", str(arguments.output))
    texts = dict(list(read_texts(arguments.input))[: arguments.limit])
    stats = json.loads((arguments.output / "_run" / "stats.json").read_bytes())
    report = {
        **environment("bench_annotate.py"),
        "config": {
            "input": arguments.input.name,
            "executor": "local",
            "threads": arguments.threads,
            "tagger": run.values["tagger"],
        },
        "accounts": account(run.values, arguments.output, len(texts)),
        "verify": {"exit_code": verified.exit_code, "findings": len(verified.values["findings"])},
        "speed": {
            "shards_timed": stats["shards"],
            "words": stats["words"],
            "command_seconds": round(run.seconds, 1) if not run.values["done_before"] else None,
            "processor_seconds": round(run.cpu_seconds, 1) if not run.values["done_before"] else None,
            "wall_seconds": round(stats["wall_seconds"], 1),
            "seconds": {stage: round(seconds, 2) for stage, seconds in stats["seconds"].items()},
            "words_per_second": {stage: round(rate) for stage, rate in stats["words_per_second"].items()},
        },
        "shards": run.values["shards"],
        "counts": {name: count for name, count in run.values["counts"].items() if "." not in name},
        "stage_two": count_stage_two(arguments.output),
        **check(arguments, texts),
    }
    print(json.dumps(report, indent=1))


def _solid(text: str) -> str:
    return "".join(text.split())


if __name__ == "__main__":
    main()
