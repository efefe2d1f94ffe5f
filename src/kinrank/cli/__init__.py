"""The command line: one file a verb, one line here. Verbs import what is heavy when they run."""

from __future__ import annotations

import sys
from importlib import import_module

import click

import kinrank
from kinrank.errors import KinrankError

VERBS: dict[str, str] = {
    "demo": "kinrank.cli.demo:command",
    "index": "kinrank.cli.index:command",
    "search": "kinrank.cli.search:command",
    "rerank": "kinrank.cli.rerank:command",
    "evaluate": "kinrank.cli.evaluate:command",
    "reproduce": "kinrank.cli.reproduce:command",
    "bench": "kinrank.cli.bench:command",
    "list": "kinrank.cli.list_cmd:command",
    "train": "kinrank.cli.train:command",
}


class Verbs(click.Group):
    """Loads a verb's file when the verb is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a newcomer's first hour."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The verb's command, or None when there is no such verb."""
        if name not in VERBS:
            return None
        module, _, attribute = VERBS[name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kinrank.__version__, prog_name="kinrank")
def root() -> None:
    """Images ranked by the company they keep: takes the first answer of a search and makes it right."""


def main(arguments: list[str] | None = None) -> None:
    """Run a verb; an expected error is one line on stderr and an exit code, never a traceback."""
    try:
        root.main(arguments, prog_name="kinrank", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("kinrank: interrupted", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("kinrank: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KinrankError as error:
        click.echo(f"kinrank: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        click.echo(f"kinrank: {error.strerror or error}{where}", err=True)
        sys.exit(1)
