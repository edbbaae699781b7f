"""The tagger and the parser of Stanza 1.15 on rows of words: their modules, without their data sets and batches.

What a network reads of a word form by itself, such as its embedding and the states over its characters, is computed
once per form and kept, for one call of the parser, in a table of limited size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from concord.pipeline.parsing.packed_sentences import PackedSentences
from concord.pipeline.parsing.spanning_tree import best_trees

# Words whose relations are scored at once: their intermediate products stay in the processor's cache.
_RELATION_WORDS = 64
ROOT_FORM = 0
"""Row of the root in a table of forms."""


def obstacle_to_networks(tagger: Any, parser: Any) -> str | None:
    """Return why the classes below cannot run a tagger and a parser, or None if they can.

    Both are given as Stanza's trainers, or None where they are not run.
    """
    for name, trainer in (("tagger", tagger), ("parser", parser)):
        if trainer is not None and trainer.args.get("bert_model"):
            return f"the package's {name} reads a transformer"
    if tagger is not None and [column.name for column in tagger.model.tag_columns[:3]] != ["upos", "xpos", "feats"]:
        return "the package's tagger has other columns than upos, xpos and feats"
    if parser is None:
        return None
    if type(parser.model).__name__ != "GraphParser" or parser.args.get("reversed"):
        return "the package's parser is not graph-based, or reads in reverse"
    if parser.args.get("use_arc_embedding"):
        return "the package's parser embeds arcs"
    return None


class _WordReader:
    """What a network reads of word forms, and of a sentence's characters.

    Args:
        processor: Stanza's, of the tagger or the parser.
    """

    def __init__(self, processor: Any, device: torch.device) -> None:
        self._network = processor.trainer.model
        self._device = device
        self._vocabulary = processor.vocab
        arguments = processor.trainer.args
        self._pretrained = processor.pretrain.vocab if arguments["pretrain"] else None
        has_characters = arguments["char"] and arguments["char_emb_dim"] > 0
        self._reads_text = bool(has_characters and arguments.get("charlm"))
        self._reads_characters = bool(has_characters and not arguments.get("charlm"))
        self._embeds_words = arguments["word_emb_dim"] > 0

    def form_vectors(self, forms: Sequence[str] | None) -> list[Tensor]:
        """Return embeddings of forms from each source that there is, each ``(forms, size)``; of the root if None."""
        from stanza.models.common.vocab import ROOT_ID

        network, vectors = self._network, []
        if self._embeds_words:
            numbers = [ROOT_ID] if forms is None else self._vocabulary["word"].map(forms)
            vectors.append(network.word_emb(self._tensor(numbers)))
        if self._pretrained is not None:
            lowered = [ROOT_ID] if forms is None else self._pretrained.map([form.lower() for form in forms])
            vectors.append(network.trans_pretrained(network.pretrained_emb(self._tensor(lowered))))
        if self._reads_characters:
            look_up = self._vocabulary["char"].map
            vectors.append(self._character_vectors([[ROOT_ID]] if forms is None else [look_up(form) for form in forms]))
        return vectors

    def _character_vectors(self, words: Sequence[Sequence[int]]) -> Tensor:
        """Run the model over the characters of each word; shape ``(words, size)``."""
        order = sorted(range(len(words)), key=lambda index: -len(words[index]))
        lengths = [len(words[index]) for index in order]
        characters = np.zeros((len(words), lengths[0]), dtype=np.int64)
        for row, index in enumerate(order):
            characters[row, : lengths[row]] = words[index]
        found = self._network.charmodel(self._tensor(characters), None, order, [len(words)], lengths)
        vectors: Tensor = self._network.trans_char(found.data)
        return vectors

    def text_vectors(self, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        """Return the states of each character model over whole sentences, each ``(all words, size)``; often none."""
        if not self._reads_text:
            return []
        vectors = []
        for name in ("charmodel_forward", "charmodel_backward"):
            states = torch.cat(getattr(self._network, name).build_char_representation(sentences))
            transform = getattr(self._network, f"{name}_transform", None)
            vectors.append(states if transform is None else transform(states))
        return vectors

    def _tensor(self, numbers: object) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64, device=self._device)


class TaggerNetwork(_WordReader):
    """The tagger: words to numbers of tags."""

    def tag(self, forms: Sequence[Tensor], sentences: Sequence[Sequence[str]], layout: PackedSentences) -> Tensor:
        """Return the tags of each word, a column for each part of a tag; shape ``(N, columns)``, in rows' order.

        Args:
            forms: of each row; as ``form_vectors`` returns them.
            sentences: the forms of each sentence, in the layout's order.
        """
        from stanza.models.common.vocab import CompositeVocab

        network = self._network
        texts = [vectors[layout.source] for vectors in self.text_vectors(sentences)]
        states = layout.run(
            network.taggerlstm, torch.cat([*forms, *texts], 1), network.taggerlstm_h_init, network.taggerlstm_c_init
        )
        hidden = {"upos": functional.relu(network.upos_hid(states))}
        scores = {"upos": network.upos_clf(hidden["upos"])}
        tags = {"upos": scores["upos"].argmax(1, keepdim=True)}
        for name in network.eval_order:
            classifiers = network.tag_clf[name]
            inputs: tuple[Tensor, ...] = (hidden["upos"],)
            if not network.share_hid:
                hidden[name] = functional.relu(network.tag_hid[name](states))
                inputs = (hidden[name], network.parent_representation(name, hidden, scores, {}))
            if isinstance(self._vocabulary[name], CompositeVocab):
                parts = [classifier(*inputs).argmax(1, keepdim=True) for classifier in classifiers]
                tags[name] = torch.cat(parts, 1)
            else:
                scores[name] = classifiers(*inputs)
                tags[name] = scores[name].argmax(1, keepdim=True)
        return torch.cat([tags[name] for name in network.tag_names], 1)


class ParserNetwork(_WordReader):
    """The parser: words, lemmas and tags to heads and numbers of relations. A sentence starts with the root."""

    def __init__(self, processor: Any, device: torch.device) -> None:
        super().__init__(processor, device)
        bilinear = self._network.deprel.scorer.W_bilin
        self._relation_weight = bilinear.weight.detach().permute(1, 0, 2).flatten(1)  # (heads, words * relations)

    def attach(
        self,
        forms: Sequence[Tensor],
        lemmas: NDArray[np.int64],
        tags: NDArray[np.int64],
        sentences: Sequence[Sequence[str]],
        layout: PackedSentences,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return head and relation of each word.

        Args:
            forms: of each row; as ``form_vectors`` returns them.
            lemmas: number of each row's lemma in the vocabulary; shape ``(N,)``.
            tags: numbers of each row's upos, and of its xpos in as many columns as its vocabulary needs; shape
                ``(N, columns)``.
            sentences: the forms of each sentence without the root, in the layout's order.

        Returns:
            heads and relations, both ``(N,)`` in rows' order; a head counts from the sentence's root, which is 0.
        """
        network = self._network
        inputs = self._inputs(forms, self._tensor(lemmas), self._tensor(tags), sentences, layout)
        states = layout.run(network.parserlstm, inputs, network.parserlstm_h_init, network.parserlstm_c_init)
        scores = self._arc_scores(states, layout)
        heads = best_trees(scores.cpu().numpy(), layout.lengths).reshape(-1)[layout.cell]
        relations = self._relations(states, self._tensor(layout.rows_of(heads)))
        return heads, relations.cpu().numpy()

    def _inputs(
        self,
        forms: Sequence[Tensor],
        lemmas: Tensor,
        tags: Tensor,
        sentences: Sequence[Sequence[str]],
        layout: PackedSentences,
    ) -> Tensor:
        """Join what the first layer reads, in the order in which its weights expect it; shape ``(N, inputs)``."""
        network, arguments, left = self._network, self._network.args, list(forms)
        words = [left.pop(0), network.lemma_emb(lemmas)] if self._embeds_words else []
        inputs = [left.pop(0)] if self._pretrained is not None else []
        inputs += words
        if arguments["tag_emb_dim"] > 0:
            parts = [network.upos_emb(tags[:, 0])] if arguments.get("use_upos", True) else []
            if arguments.get("use_xpos", True):
                tables = network.xpos_emb if isinstance(network.xpos_emb, torch.nn.ModuleList) else [network.xpos_emb]
                parts += [table(tags[:, column]) for column, table in enumerate(tables, start=1)]
            # Stanza reads the embedding of upos and xpos again where that of features would be.
            inputs += [sum(parts[1:], start=parts[0])] * (2 if arguments.get("use_ufeats", True) else 1)
        texts = self.text_vectors([["\n", *sentence] for sentence in sentences])
        return torch.cat([*inputs, *left, *(vectors[layout.source] for vectors in texts)], 1)

    def _arc_scores(self, states: Tensor, layout: PackedSentences) -> Tensor:
        """Score every word (row) with every head (column) of its sentence; shape ``(B, longest, longest)``."""
        network = self._network
        scores = _pair_scores(network.unlabeled, states, layout)
        places = torch.arange(layout.longest, device=self._device)
        offsets = places[None, :] - places[:, None]
        if network.args["linearization"]:
            order = _pair_scores(network.linearization, states, layout)
            scores += functional.logsigmoid(order * torch.sign(offsets))
        if network.args["distance"]:
            expected = 1 + functional.softplus(_pair_scores(network.distance, states, layout))
            scores -= torch.log((offsets.abs() - expected) ** 2 / 2 + 1)
        return scores

    def _relations(self, states: Tensor, heads: Tensor) -> Tensor:
        """Return the number of each row's best relation to its head, given by its row; shape ``(N,)``."""
        from stanza.models.common.vocab import VOCAB_PREFIX_SIZE

        scorer = self._network.deprel
        bilinear, weight = scorer.scorer.W_bilin, self._relation_weight
        words, parents = _hidden(scorer.W1, states), _hidden(scorer.W2, states)
        order = torch.argsort(heads)
        best = torch.empty_like(heads)
        for chunk in order.split(_RELATION_WORDS):
            distinct, place, counts = torch.unique_consecutive(heads[chunk], return_inverse=True, return_counts=True)
            products = (parents[distinct] @ weight).view(len(distinct), words.shape[1], -1)
            # The words of one head in one row, since a copy of the products for each word takes longer.
            rank = torch.arange(len(chunk), device=heads.device) - (counts.cumsum(0) - counts)[place]
            by_head = words.new_zeros(len(distinct), int(counts.max()), words.shape[1])
            by_head[place, rank] = words[chunk]
            scores = torch.bmm(by_head, products)[place, rank] + bilinear.bias
            best[chunk] = scores.argmax(1)
        relations: Tensor = best + VOCAB_PREFIX_SIZE
        return relations


class FormTable:
    """What networks read of word forms by themselves, computed when a form first occurs.

    It holds at most ``most_forms``, or those of one call if they are more; then it starts again.
    """

    def __init__(self, readers: Sequence[_WordReader], *, most_forms: int = 1 << 15) -> None:
        self._readers = readers
        self._most_forms = most_forms
        self._roots = [reader.form_vectors(None) for reader in readers]
        self._start(most_forms)

    def _start(self, most: int) -> None:
        self._numbers: dict[str, int] = {}
        self._most = most
        self._tables = [[root.new_empty(1 + most, root.shape[1]) for root in roots] for roots in self._roots]
        for tables, roots in zip(self._tables, self._roots, strict=True):
            for table, root in zip(tables, roots, strict=True):
                table[ROOT_FORM] = root[0]

    def clear(self) -> None:
        """Forget all forms, so that the last bits of what follows do not depend on what came before."""
        if self._most != self._most_forms:
            self._start(self._most_forms)
        else:
            self._numbers.clear()

    def look_up(self, forms: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each form in ``vectors``; valid until the next call."""
        distinct = dict.fromkeys(forms)
        new = [form for form in distinct if form not in self._numbers]
        if len(self._numbers) + len(new) > self._most:
            new = list(distinct)
            self._start(max(len(new), self._most_forms))
        if new:
            from stanza.models.common.utils import simplify_punct

            start = 1 + len(self._numbers)
            self._numbers.update(zip(new, range(start, start + len(new)), strict=True))
            # As Stanza's tagger and parser read them: runs of question and exclamation marks as one.
            simplified = [form for [[form]] in simplify_punct([[[form]] for form in new])]
            for tables, reader in zip(self._tables, self._readers, strict=True):
                for table, vectors in zip(tables, reader.form_vectors(simplified), strict=True):
                    table[start : start + len(new)] = vectors
        return np.fromiter(map(self._numbers.__getitem__, forms), dtype=np.int64, count=len(forms))

    def vectors(self, reader: int, rows: NDArray[np.int64]) -> list[Tensor]:
        """Return what a reader, given by its place among them, reads of each row; see ``form_vectors``."""
        return [table[torch.from_numpy(rows).to(table.device)] for table in self._tables[reader]]


def _hidden(layer: torch.nn.Module, states: Tensor) -> Tensor:
    """Return the layer's output for each state with a one appended, as biaffine scorers read it."""
    return functional.pad(functional.relu(layer(states)), (0, 1), value=1.0)


def _pair_scores(scorer: Any, states: Tensor, layout: PackedSentences) -> Tensor:
    """Score all pairs of words of a sentence with a biaffine scorer of one output; shape ``(B, longest, longest)``."""
    bilinear = scorer.scorer.W_bilin
    words = layout.pad(_hidden(scorer.W1, states) @ bilinear.weight[:, :, 0])
    scores: Tensor = torch.bmm(words, layout.pad(_hidden(scorer.W2, states)).transpose(1, 2)) + bilinear.bias
    return scores
