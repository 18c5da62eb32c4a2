"""`kittiwake policy`: whether a scaling policy can be used, and the schema of such files. Needs no cluster."""

from __future__ import annotations

import json
from pathlib import Path

import click

from actors.commands.options import plural


@click.group(short_help="Check a scaling policy.")
def policy() -> None:
    """Scaling policies: the YAML files that say how the autoscaler sizes the layers.

    \b
    kittiwake policy check configs/autoscaler.yaml
    """


@policy.command(short_help="Tell what is wrong with a policy, if anything.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False))
@click.pass_context
def check(ctx: click.Context, files: tuple[str, ...]) -> None:
    """Check policies as `kittiwake up` would. A summary for each that holds; for others, each trouble with file, line,
    key and what is allowed, and exit code 1.

    \b
    kittiwake policy check configs/autoscaler.yaml
    """
    from autoscaler.policy_file import load_policy
    from autoscaler.summary import summary
    from cluster.errors import ConfigError

    failed = False
    for file in files:
        try:
            text = summary(load_policy(file))
        except ConfigError as error:
            click.echo(str(error), err=True)
            failed = True
        else:
            click.echo(f"{file}: {text}")
    ctx.exit(1 if failed else 0)


@policy.command(short_help="Print the JSON Schema of policies.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write it there.")
def schema(output: str | None) -> None:
    """Print the JSON Schema of policy files, with which editors complete keys and mark mistakes.

    \b
    kittiwake policy schema -o policy.schema.json
    # and in the policy's first line:  # yaml-language-server: $schema=policy.schema.json
    """
    from autoscaler.policy_file import json_schema

    text = json.dumps(json_schema(), indent=2)
    if output is None:
        click.echo(text)
        return
    Path(output).write_text(text + "\n", encoding="utf-8")
    click.echo(f"{output}: {plural(len(text), 'character')}", err=True)
