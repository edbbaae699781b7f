"""The parser of a Stanza package.

A configuration may leave out the trees, and the tags with them; their networks are then not loaded.

``stanza_packages`` finds a Stanza package, which ``stanza_pipeline`` loads. Its networks are run by ``stanza_fast``,
which makes its own batches (``packed_sentences``) and calls the modules of the networks (``stanza_networks``), or by
``PlainStanza``, which calls the processors of Stanza: slower, and the reference that the fast one must equal word by
word. ``spanning_tree`` finds the best tree.
"""

import logging
from collections.abc import Sequence
from functools import partial

from typing_extensions import override

from concord.models.bundles.checkpoint import pick_device
from concord.models.data.outputs import OnBatch
from concord.models.data.sentence import Sentence
from concord.pipeline.config import ParserConfig
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.stanza_fast import FastStanza, FastTokenizer, obstacle_to_shortcuts
from concord.pipeline.parsing.stanza_packages import EMBEDDED_PACKAGES, find_package, identity_of
from concord.pipeline.parsing.stanza_pipeline import PlainStanza, load_pipeline
from concord.pipeline.parsing.tokens import Token, WordAnalysis
from concord.pipeline.parsing.words import mend_words

logger = logging.getLogger(__name__)


class StanzaParser(Parser):
    """A Stanza pipeline.

    Raises:
        ModelError: when the package is not installed or does not load.
        ConfigError: when there is no such device.
    """

    def __init__(self, config: ParserConfig) -> None:
        package = self._package = find_package(config)
        super().__init__(identity=identity_of(config, package), needs_spaces=config.package in EMBEDDED_PACKAGES)
        nlp = load_pipeline(package, device=pick_device(config.device, key="parser.device"))
        kind: type[PlainStanza] = FastStanza if "pos" in package.processors else FastTokenizer
        if obstacle := obstacle_to_shortcuts(nlp):
            logger.warning("Parsing without shortcuts, at a fraction of the speed: %s", obstacle)
            kind = PlainStanza
        self._stanza = kind(nlp)

    @override
    def _tokenize(self, views: Sequence[str], on_batch: OnBatch | None) -> list[list[list[Token]]]:
        tokenized = self._stanza.tokenize(views, on_batch=on_batch)
        return list(map(partial(mend_words, letters=self._needs_spaces), views, tokenized))

    @override
    def _analyse(self, sentences: Sequence[Sentence], on_batch: OnBatch | None) -> list[list[WordAnalysis]]:
        return self._stanza.analyse([sentence.words for sentence in sentences], on_batch=on_batch)
