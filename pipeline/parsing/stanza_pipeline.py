"""Load a Stanza package, without what Stanza imports and builds for other uses, and run it.

``PlainStanza`` calls its own processors: the reference for ``stanza_fast``, and the fallback.
"""

import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType
from typing import Any, Literal

from torch.optim import Optimizer
from typing_extensions import override

from concord.models.data.outputs import OnBatch
from concord.models.errors import ModelError
from concord.pipeline.parsing.stanza_packages import StanzaPackage
from concord.pipeline.parsing.tokens import Token, WordAnalysis, make_token

_STANZA_MAX_SEQLEN = 1_000_000
"""Longer paragraphs, and tokens, are changed by Stanza: it cuts paragraphs into windows that depend on what else is in
the batch, and replaces tokens by ``<UNK>``."""


def load_pipeline(package: StanzaPackage, *, device: Literal["cpu", "cuda"]) -> Any:
    """Load a package as a Stanza pipeline; nothing is downloaded. ModelError if Stanza cannot read it."""
    with _without_unused_imports():
        import stanza

    try:
        with _without_optimizers():
            return stanza.Pipeline(
                lang=package.language,
                dir=str(package.folder),
                package=package.name,
                processors=",".join(package.processors),
                download_method=None,
                use_gpu=device == "cuda",
                verbose=False,
                tokenize_max_seqlen=_STANZA_MAX_SEQLEN,
                # Its default is set by each package; the repair costs a third of the speed for 0.7 % of the words.
                depparse_resolve_head_constraints=False,
            )
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ModelError(
            f"parser.package: Stanza cannot load {package.name!r} for {package.language!r} from {package.folder}: "
            f"{type(error).__name__}: {error}; install the package again"
        ) from error


# Stanza does without the first if they are missing; the others it imports in modules of which nothing here calls them.
_HIDDEN = frozenset({"transformers", "IPython"})
_DEFERRED = frozenset({"emoji", "networkx", "requests"})


class _DeferredModule(ModuleType):
    """Stands for a module, which it imports when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for what the module may not have
            raise AttributeError(name)
        _forget(self)
        return getattr(import_module(self.__name__), name)


def _forget(module: ModuleType) -> None:
    """Let the next import of a deferred module find the module itself."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


class _HidingFinder(MetaPathFinder):
    """Hides modules from the imports of the thread that makes it."""

    def __init__(self) -> None:
        self._thread = get_ident()

    @override
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if get_ident() == self._thread and fullname in _HIDDEN:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


@contextmanager
def _without_unused_imports() -> Iterator[None]:
    """Import Stanza without libraries that it does not use here, which are most of its import."""
    finder, deferred = _HidingFinder(), list(map(_DeferredModule, _DEFERRED - sys.modules.keys()))
    sys.meta_path.insert(0, finder)
    sys.modules.update((module.__name__, module) for module in deferred)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for module in deferred:
            _forget(module)


class _UnusedOptimizer(Optimizer):
    """Has the parameters and learning rates that a trainer of Stanza plans with, and never steps."""

    def __init__(self, name: str, parameters: Any, *, lr: float, **options: object) -> None:
        del name, options
        super().__init__(parameters, {"lr": lr})

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        # That of torch imports torch's compiler, in a second or more.
        self.param_groups.append(self.defaults | param_group)


@contextmanager
def _without_optimizers() -> Iterator[None]:
    """Load Stanza's networks without the optimizers that their trainers build even where nothing is trained."""
    from stanza.models.common import utils

    build = utils.dispatch_optimizer
    utils.dispatch_optimizer = _UnusedOptimizer
    try:
        yield
    finally:
        utils.dispatch_optimizer = build


MAX_WORD_LENGTH = 300
"""Longer words are truncated for tagger and parser, since the longest word of a batch decides the tagger's memory."""


class PlainStanza:
    """Stanza's own processors, called one after the other."""

    def __init__(self, nlp: Any) -> None:
        self._nlp = nlp

    def tokenize(self, views: Sequence[str], *, on_batch: OnBatch | None = None) -> list[list[list[Token]]]:
        """Split each text into sentences of tokens; ``on_batch`` as for ``Parser.parse``."""
        tokenized = []
        for view in views:
            tokenized.append(self._tokenize(view) if view.strip() else [])
            if on_batch is not None:
                on_batch(0, 0)
        return tokenized

    def _tokenize(self, view: str) -> list[list[Token]]:
        document = self._nlp.processors["tokenize"].process(view)
        if "mwt" in self._nlp.processors:
            document = self._nlp.processors["mwt"].process(document)
        return [
            [
                make_token(view, token.start_char, token.end_char, [word.text for word in token.words])
                for token in sentence.tokens
            ]
            for sentence in document.sentences
        ]

    def analyse(
        self, sentences: Sequence[Sequence[str]], *, on_batch: OnBatch | None = None
    ) -> list[list[WordAnalysis]]:
        """Tag, lemmatize and parse sentences given as words, as far as the pipeline does.

        Here it is one batch, so ``on_batch`` is not called.
        """
        del on_batch
        if not sentences or "pos" not in self._nlp.processors:
            return [[WordAnalysis()] * len(sentence) for sentence in sentences]
        document = stanza_document([[{"text": truncate(form)} for form in sentence] for sentence in sentences])
        for name in ("pos", "lemma", "depparse"):
            if name in self._nlp.processors:
                document = self._nlp.processors[name].process(document)
        return [
            [
                WordAnalysis(restore_lemma(word.lemma, form), word.upos, word.xpos, word.feats, word.head, word.deprel)
                for word, form in zip(analysed.words, sentence, strict=True)
            ]
            for analysed, sentence in zip(document.sentences, sentences, strict=True)
        ]


def truncate(form: str) -> str:
    """Return the part of a word that Stanza sees."""
    return form[:MAX_WORD_LENGTH]


def restore_lemma(lemma: str | None, form: str) -> str | None:
    """Return the lemma of a word that Stanza may have seen truncated."""
    if len(form) > MAX_WORD_LENGTH and lemma == truncate(form):
        return form
    return None if lemma == "_" and form != "_" else lemma


def stanza_document(sentences: Sequence[Sequence[dict[str, Any]]]) -> Any:
    """Build a Stanza document from sentences whose words are mappings of fields."""
    from stanza.models.common.doc import Document as StanzaDocument

    return StanzaDocument(
        [[{"id": (place,), **word} for place, word in enumerate(sentence, start=1)] for sentence in sentences]
    )
