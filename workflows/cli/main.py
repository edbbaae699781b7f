"""The command line. Only click is imported until a command runs, so that ``--help`` is immediate."""

import gc
import logging
import sys

import click

from concord._environment import set_environment
from concord.workflows.cli import collection_commands as collections
from concord.workflows.cli import model_commands as taggers
from concord.workflows.cli.options import SectionedGroup

# As listed by --help: in the order of work.
SECTIONS = {
    "Collections": (
        collections.annotate,
        collections.tag,
        collections.status,
        collections.verify,
        collections.history,
        collections.files,
        collections.diff,
        collections.errors,
        collections.report,
        collections.view,
        collections.export,
        collections.schema,
        collections.doctor,
    ),
    "Corrections": (collections.review, collections.corrections),
    "Taggers": (taggers.init, taggers.prepare, taggers.train, taggers.evaluate, taggers.compare, taggers.calibrate),
    "Registry": (taggers.bundle, taggers.promote, taggers.rollback, taggers.registry),
    "Clusters": (collections.submit,),
    "Research": (taggers.parse,),
}


@click.group(
    cls=SectionedGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="concord-annotate")
def main() -> None:
    """Annotate document collections with sentences, dependency trees and entities.

    Results go to stdout, progress and warnings to stderr.

    \b
    Exit codes:
      0    success
      1    failure
      2    wrong usage, configuration or model
      3    more dead letters than allowed, or documents missing from an export
      4    promotion refused, or the champion moved in the meantime
      75   no disk space, or a store cannot be reached; try again
      130  interrupted
      143  terminated
    """
    set_environment()
    # Modules and models are some hundred thousand objects that stay, and would be visited every 700.
    gc.set_threshold(50_000)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # It says how many workers it has chosen.
    logging.getLogger("concord.pipeline.executors.ray_cluster").setLevel(logging.INFO)
