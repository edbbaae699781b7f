"""Which spans a batch is asked for: the entities that its labels say, each with the labels that make it.

A label sequence holds an entity just where the span decoder reads it off: its words bear its labels and, under BIO,
the next word does not continue it; under BIOES the last word's own label says that it ends.

A sentence that is read in windows is cut at the seams, and so are its entities: each window is asked for the part among
the words that it keeps, and an entity has the product of its parts. Where one ends right at a seam the next word,
which is another window's, is not asked whether it continues it.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import AskedSpans
from concord.models.labels import Span


def ask_for_spans(
    labels: Tensor, kept: Sequence[tuple[int, int]], sentences: Iterable[int], vocabulary: Vocabulary
) -> AskedSpans | None:
    """Ask for the entities in the kept words of sentences of a batch.

    Args:
        labels: of the batch, shape ``(B, T)``, int64.
        kept: first and last kept word of each sentence of the batch, half-open.
        sentences: those to ask for.

    Returns:
        None where there is no entity, as with token labels always.
    """
    if not vocabulary.scheme.has_entities:
        return None
    # The label of number 0 is O: most sentences hold no other.
    named = labels.any(dim=1).tolist()
    found: list[tuple[int, Span, list[int], str | None]] = []
    for number in sentences:
        if not named[number]:
            continue
        begin, stop = kept[number]
        own = labels[number, begin:stop].tolist()
        for span in vocabulary.scheme.entity_pieces([vocabulary.labels[label] for label in own]):
            forbidden = vocabulary.scheme.continuation(span.label) if span.end < len(own) else None
            found.append((number, span, own[span.start : span.end], forbidden))
    if not found:
        return None
    lengths = [len(own) + (forbidden is not None) for _, _, own, forbidden in found]
    allowed = torch.zeros(len(found), max(lengths), len(vocabulary.labels), dtype=torch.bool)
    for entry, (_, _, own, forbidden) in zip(allowed, found, strict=True):
        entry[range(len(own)), own] = True
        if forbidden is not None:
            entry[len(own)] = True
            entry[len(own), vocabulary.labels.index(forbidden)] = False
    return AskedSpans(
        sentences=torch.tensor([number for number, *_ in found], device=labels.device),
        starts=torch.tensor([kept[number][0] + span.start for number, span, *_ in found], device=labels.device),
        lengths=torch.tensor(lengths, device=labels.device),
        allowed=allowed.to(labels.device),
    )
