"""Import of corrections from the files of other tools, the inverse of the export to them."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from concord.pipeline.corrections.correction import Correction, check_name, current_corrections
from concord.pipeline.corrections.log import append_to_log, log_path, read_log
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.brat_read import read_brat
from concord.pipeline.exchange.conllu_read import read_conllu
from concord.pipeline.exchange.edits import Refused, Target, find_edits
from concord.pipeline.exchange.label_studio_read import read_label_studio
from concord.pipeline.exchange.passage import AnnotatedPassage
from concord.pipeline.exchange.source_texts import SourceTexts
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.document_rows import read_collection
from concord.pipeline.output.shard_stats import entity_types
from concord.pipeline.storage.output_paths import OutputPath


@dataclass(kw_only=True, slots=True)
class ImportReport:
    """What was imported.

    Attributes:
        passages: documents, or sentences of a review queue, in the file.
        corrections: in the order of the collection.
        refused: what could not be imported.
    """

    passages: int = 0
    corrections: list[Correction] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    @property
    def actions(self) -> Counter[str]:
        """The number of corrections by action."""
        return Counter(correction.action for correction in self.corrections)


def import_corrections(path: Path, output: OutputPath, *, who: str, dry_run: bool = False) -> ImportReport:
    """Append to the log of a collection what an annotator changed in an export of it.

    Args:
        path: a file of Label Studio or CoNLL-U, or a folder of brat; it may hold some documents only.
        who: the annotator.
        dry_run: append nothing.

    Raises:
        InputError: when the file cannot be read, or a line of it or of the log has another form.
        PlanError: when the folder holds no finished run.
        ConfigError: for a collection in an object store.
        StoreError: when there is no space; then nothing is imported.
    """
    log = log_path(output)
    try:
        check_name(who)
    except ValueError as error:
        raise InputError(f"--as: {error}, got {who!r}") from None
    collection = open_collection(output)
    current = current_corrections(read_log(log))
    passages: defaultdict[str, list[AnnotatedPassage]] = defaultdict(list)
    report = ImportReport()
    for passage in read_passages(path):
        passages[passage.doc_id].append(passage)
        report.passages += 1
    texts = SourceTexts.of(collection.plan)
    types = entity_types(collection.manifest.shards)
    for document in read_collection(collection, wanted=passages.__contains__):
        doc_id = document.row.doc_id
        own, text = passages.pop(doc_id), texts.find(document.row)
        if isinstance(text, DeadLetter):
            report.refused.append(Refused(where=own[0].where, doc_id=doc_id, reason=text.message))
            continue
        target = Target(
            document=document,
            text=text,
            generation=collection.manifest.generation,
            log=current.get(doc_id, ()),
            types=types,
        )
        for passage in own:
            for edit in find_edits(passage, target, who=who):
                if isinstance(edit, Refused):
                    report.refused.append(edit)
                else:
                    report.corrections.append(edit)
    report.refused += [
        Refused(where=own[0].where, doc_id=doc_id, reason="the collection has no document of this id")
        for doc_id, own in passages.items()
    ]
    if not dry_run:
        append_to_log(log, report.corrections)
    return report


def read_passages(path: Path) -> Iterator[AnnotatedPassage]:
    """Read a file by its name: a folder is brat's, ``.json`` Label Studio's and ``.conllu`` CoNLL-U, also compressed.

    Raises:
        InputError: when it has another name or form, or cannot be read.
    """
    if path.is_dir():
        return read_brat(path)
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".json"):
        return read_label_studio(path)
    if name.endswith(".conllu"):
        return read_conllu(path)
    raise InputError(
        f"{path}: expected a folder of brat, a .json file of Label Studio or a .conllu file, each from 'concord export'"
    )
