"""Parse documents with our parser and with plain Stanza, in turns, and compare speed and words.

Command: python benchmarks/bench_parse.py --data ../shared/data/text/us_presidents.jsonl.zst

Both have the same weights and the same documents, taken at even distances from the file; both are warm. Our parser uses
one thread, plain Stanza --threads. Plain Stanza is one call of ``stanza.Pipeline.bulk_process`` with the options that
make its answer independent of the batch. A turn parses the documents once with each, in alternating order. Words are
compared by offsets, form, lemma, tags, features, head and relation. Our parser splits a sentence longer than the cap
and Stanza does not; its words are counted separately. Ratios are of wall seconds and of processor seconds, which other
work on the machine disturbs less; with one thread they measure the same. With --other, the parser of another checkout
takes its turns too, in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import stanza
import torch
from corpora import read_texts
from environment import environment, quartiles, spread

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.parsing.stanza_packages import EMBEDDED_PACKAGE
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.parsing.tokens import SENTENCE_CAP

ROOT = Path(__file__).resolve().parents[1]

Word = tuple[int, int, str, str | None, str | None, str | None, str | None, int | None, str | None]


def choose_documents(path: Path, *, words: int) -> list[Document]:
    """Take documents at even distances, about `words` words as split by white space."""
    records = list(read_texts(path))
    sizes = [len(text.split()) for _, text in records]
    step = max(1, round(sum(sizes) / words))
    return [
        Document(doc_id=doc_id, text=text, source_uri=path.name, source_position=0) for doc_id, text in records[::step]
    ]


def plain_pipeline(threads: int) -> Any:
    """Load the embedded weights as plain Stanza does."""
    torch.set_num_threads(threads)
    return stanza.Pipeline(
        "en",
        dir=str(ROOT / "models" / "pretrained" / EMBEDDED_PACKAGE),
        package="default",
        processors="tokenize,mwt,pos,lemma,depparse",
        download_method=None,
        use_gpu=False,
        verbose=False,
        tokenize_max_seqlen=1_000_000,
        depparse_resolve_head_constraints=False,
    )


def our_sentences(documents: Sequence[ParsedDocument]) -> Iterator[list[Word]]:
    """Yield the words of each sentence, the pieces of a long one joined."""
    for document in documents:
        joined: list[Word] = []
        for sentence in document.sentences:
            if joined and not sentence.continues:
                yield joined
                joined = []
            joined.extend(
                (w.start_char, w.end_char, w.word, w.lemma, w.upos, w.xpos, w.feats, w.head, w.deprel)
                for w in sentence.words
            )
        if joined:
            yield joined


def plain_sentences(documents: Sequence[Any]) -> Iterator[list[Word]]:
    """Yield the words of each of Stanza's sentences."""
    for document in documents:
        for sentence in document.sentences:
            yield [
                (w.start_char, w.end_char, w.text, w.lemma, w.upos, w.xpos, w.feats, w.head, w.deprel)
                for w in sentence.words
            ]


def compare(ours: Sequence[list[Word]], plain: Sequence[list[Word]], *, cap: int) -> dict[str, int]:
    """Count words that differ, separately for sentences above the cap."""
    same = [set(sentence) for sentence in ours]
    if len(ours) != len(plain):
        raise ValueError(f"expected equal numbers of sentences, got {len(ours)} and {len(plain)}")
    differing = [
        (len(sentence) > cap, sum(word not in found for word in sentence))
        for found, sentence in zip(same, plain, strict=True)
    ]
    return {
        "words": sum(map(len, plain)),
        "words_that_differ": sum(count for long, count in differing if not long),
        "sentences_above_the_cap": sum(len(sentence) > cap for sentence in plain),
        "words_that_differ_above_the_cap": sum(count for long, count in differing if long),
    }


class OtherParser:
    """A process that parses the same documents with the parser of another checkout."""

    def __init__(self, checkout: Path, documents: Sequence[Document]) -> None:
        """Start the process, and let it load its models and parse once."""
        commit = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
        self.commit = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            env=os.environ | {"PYTHONPATH": str(checkout)},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ask([[document.doc_id, document.text] for document in documents])

    def parse(self) -> tuple[float, float]:
        """Return the wall and processor seconds of one turn."""
        wall, cpu = self._ask(None)
        return wall, cpu

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def work() -> None:
    """Parse the documents of the first line, and again for every further line; print the seconds of each turn."""
    parser = StanzaParser(ParserConfig())
    documents = [
        Document(doc_id=doc_id, text=text, source_uri="", source_position=0)
        for doc_id, text in json.loads(sys.stdin.readline())
    ]
    parser.parse(documents)
    print(json.dumps(None), flush=True)
    for _ in sys.stdin:
        started, cpu_started = time.perf_counter(), time.process_time()
        parser.parse(documents)
        print(json.dumps([time.perf_counter() - started, time.process_time() - cpu_started]), flush=True)


def ratio(seconds: dict[str, list[float]], *, slower: str = "plain") -> dict[str, Any]:
    """Return how many times as long plain Stanza or the other parser takes, by pairs."""
    ratios = [slow / fast for slow, fast in zip(seconds[slower], seconds["ours"], strict=True)]
    return spread(ratios, digits=3) | quartiles(ratios, digits=3)


def rates(seconds: dict[str, list[float]], *, words: int) -> dict[str, dict[str, float]]:
    """Return words per second of both."""
    return {name: spread([words / value for value in values], digits=1) for name, values in seconds.items()}


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/text/us_presidents.jsonl.zst")
    arguments.add_argument("--words", type=int, default=30_000)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--other", type=Path, help="root of another checkout")
    options = arguments.parse_args()

    config = ParserConfig()
    documents = choose_documents(options.data, words=options.words)
    nlp = plain_pipeline(options.threads)
    parser = StanzaParser(config)
    ours = parser.parse(documents)
    plain = nlp.bulk_process([document.text for document in documents])
    differences = compare(
        list(our_sentences([document for document in ours if isinstance(document, ParsedDocument)])),
        list(plain_sentences(plain)),
        cap=SENTENCE_CAP,
    )
    del ours, plain
    other = OtherParser(options.other, documents) if options.other is not None else None
    names = ["ours", "plain"] if other is None else ["ours", "other", "plain"]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in names}
    for pair in range(options.pairs):
        for name in names if pair % 2 == 0 else reversed(names):
            started, cpu_started = time.perf_counter(), time.process_time()
            if name == "ours":
                parser.parse(documents)
            elif name == "plain":
                nlp.bulk_process([document.text for document in documents])
            elif other is not None:
                wall, cpu = other.parse()
                started, cpu_started = time.perf_counter() - wall, time.process_time() - cpu
            seconds[name].append(time.perf_counter() - started)
            cpu_seconds[name].append(time.process_time() - cpu_started)
    against_other: dict[str, object] = {}
    if other is not None:
        other.close()
        against_other = {
            "other": other.commit,
            "ratio_of_cpu_seconds_to_other": ratio(cpu_seconds, slower="other"),
        }
    report = {
        **environment("bench_parse.py"),
        "config": {
            "documents": len(documents),
            "characters": sum(len(document.text) for document in documents),
            "threads": options.threads,
            "parser": config.model_dump(),
        },
        "repeats": options.pairs,
        "ratio": ratio(seconds),
        "ratio_of_cpu_seconds": ratio(cpu_seconds),
        **against_other,
        "words_per_second": rates(seconds, words=differences["words"]),
        "words_per_cpu_second": rates(cpu_seconds, words=differences["words"]),
        **differences,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--worker"] else main()
