"""The spans whose probability is asked for: the entities in a batch's labels, with the labels that make them up.

A label sequence contains an entity exactly where the span decoder finds it: the words have its labels and, under BIO,
the next word does not continue it; under BIOES the label of the last word ends it.

A sentence that is read in windows is cut at the seams, and so are its entities: each window is queried for the part
among the words that it keeps, and the probability of an entity is the product over its parts. If an entity ends at a
seam, the next word, which another window keeps, is not checked for continuing it.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import SpanQuery
from concord.models.labels import Span


def span_query(
    labels: Tensor, kept: Sequence[tuple[int, int]], sentences: Iterable[int], vocabulary: Vocabulary
) -> SpanQuery | None:
    """Build the query for the entities among the kept words of some sentences; None if there is no entity.

    Args:
        labels: shape ``(B, T)``, int64.
        kept: the kept words of each sentence of the batch, half-open.
        sentences: numbers of the sentences to query.
    """
    if not vocabulary.scheme.has_entities:
        return None
    # Label 0 is O: most sentences have no other.
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
    return SpanQuery(
        sentences=torch.tensor([number for number, *_ in found], device=labels.device),
        starts=torch.tensor([kept[number][0] + span.start for number, span, *_ in found], device=labels.device),
        lengths=torch.tensor(lengths, device=labels.device),
        allowed=allowed.to(labels.device),
    )
