"""Build the workers of a plan in the process that runs them; before, nothing of torch, Stanza or spaCy is imported."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ModelError
from concord.pipeline.plan import Plan
from concord.pipeline.resources import bound_caches

if TYPE_CHECKING:
    from concord.pipeline.worker.shard_worker import ShardWorker

BuildWorker = Callable[[Plan], "ShardWorker"]


def build_worker(plan: Plan) -> "ShardWorker":
    """Load a plan's parser and tagger and build the worker; sets threads and caches of the process.

    Raises:
        ModelError: when one cannot be loaded or the tagger is not the one of the plan.
        InputError: when the list of terms cannot be read or is not the one of the plan.
    """
    bound_caches()
    import torch

    from concord.models.bundles.checkpoint import load_tagger
    from concord.pipeline.corpora.read_terms import read_terms_for
    from concord.pipeline.parsing.resolve_parser import load_parser
    from concord.pipeline.worker.shard_worker import ShardWorker

    torch.set_num_threads(plan.threads)
    folder = Path(plan.tagger_folder)
    if tagger_digest(folder) != plan.tagger.digest:
        raise ModelError(f"{folder}: not the tagger that the plan names: SHA-256 differs")
    tagger = load_tagger(folder, device=plan.config.tagger.device)
    terms = read_terms_for(tagger, plan.config.tagger.terms, digest=plan.tagger.terms)
    return ShardWorker(plan, parser=load_parser(plan.config.parser), tagger=tagger, terms=terms)
