"""The command line. Only click is imported until a command runs, so that ``--help`` is immediate."""

import logging
import sys

import click

from concord._environment import set_environment
from concord.workflows.cli import collection_commands as collection
from concord.workflows.cli import correction_commands
from concord.workflows.cli import history_commands as generations
from concord.workflows.cli import model_commands as model
from concord.workflows.cli import registry_commands as registry
from concord.workflows.cli.options import OrderedGroup

# As listed by --help: in the order of work.
VERBS = (
    collection.annotate,
    collection.tag,
    model.init,
    model.prepare,
    model.parse,
    model.train,
    model.distil,
    model.evaluate,
    model.compare,
    model.calibrate,
    model.cascade,
    registry.promote,
    registry.rollback,
    collection.submit,
    registry.registry,
    collection.status,
    collection.verify,
    generations.history,
    generations.files,
    collection.diff,
    collection.errors,
    collection.report,
    collection.view,
    collection.export,
    collection.review,
    correction_commands.corrections,
    correction_commands.learn,
    collection.schema,
    collection.doctor,
)


@click.group(cls=OrderedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


for command in VERBS:
    main.add_command(command)
