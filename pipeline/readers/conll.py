"""Gold corpora in columns: the word first, its label last, a blank line between sentences.

``-DOCSTART-`` as a word starts a document; a sentence that stands in no document is a document by itself.
"""

from pathlib import Path

from models.data import Sentence
from pipeline.errors import InputError
from pipeline.readers.gold_lines import GoldFormat, check_labels, numbered_lines

DOCUMENT_START = "-DOCSTART-"


def read_gold(path: Path, form: GoldFormat) -> list[list[Sentence]]:
    """Read the documents of a corpus, each a list of sentences with labels.

    Columns are parted by tabs where the line has one, else by blanks.

    Raises:
        InputError: with file and line, when the file is not of this form or a label is not of the scheme.
    """
    documents: list[list[Sentence]] = []
    in_document = False
    words: list[str] = []
    labels: list[str] = []
    numbers: list[int] = []

    def close_sentence() -> None:
        if not words:
            return
        check_labels(labels, numbers, path, form)
        sentence = Sentence(words=tuple(words), labels=tuple(labels))
        if in_document:
            documents[-1].append(sentence)
        else:
            documents.append([sentence])
        for column in (words, labels, numbers):
            column.clear()

    for number, line in numbered_lines(path):
        columns = line.split("\t") if "\t" in line else line.split()
        if not columns:
            close_sentence()
        elif columns[0] == DOCUMENT_START:
            close_sentence()
            in_document = True
            documents.append([])
        elif len(columns) < 2 or not columns[0] or not columns[-1]:
            raise InputError(f"{path}:{number}: expected a word and a label, parted by a tab, got {line!r}")
        else:
            words.append(columns[0])
            labels.append(columns[-1])
            numbers.append(number)
    close_sentence()
    return [document for document in documents if document]
