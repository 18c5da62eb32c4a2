"""`kittiwake scale`, `replace`, `transitions` and `abort`: another number of slices, while the cluster serves."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from actors.commands.failures import Interrupted
from actors.commands.operations import changes, describe_history, describe_operation, describe_plan
from actors.commands.options import config_option, json_option
from actors.commands.running import run
from cluster.config import load_config

if TYPE_CHECKING:
    from cluster.admin import Admin

LAYERS = ("connection_points", "access_points", "matchers", "exit_points")
STRATEGIES = ("waves", "all_at_once", "stop_swap")

Document = dict[str, Any]


class CountType(click.ParamType):  # type: ignore[type-arg]
    """`matchers=3`."""

    name = "count"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Return the layer and the number."""
        layer, equals, count = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is not of the form matchers=3", param, ctx)
        if layer not in LAYERS:
            self.fail(f"{layer!r} is no layer; known are {', '.join(LAYERS)}", param, ctx)
        if not (count.isascii() and count.isdigit()) or not int(count):
            self.fail(f"{layer}: {count!r} is not a whole number above 0", param, ctx)
        return layer, int(count)


def wish_options(command: Any) -> Any:
    """Add what `scale` and `replace` share."""
    for option in (
        json_option,
        click.option("--no-wait", is_flag=True, help="Do not wait until it is done."),
        click.option("--plan", is_flag=True, help="Say what would be done, and do nothing."),
        click.option(
            "--strategy",
            type=click.Choice(STRATEGIES),
            help="How to go there; without it as the configuration says. stop_swap parks what comes meanwhile; it is "
            "there for comparison.",
        ),
        config_option,
    ):
        command = option(command)
    return command


@click.command(short_help="Change how many slices the layers have.")
@click.argument("counts", metavar="LAYER=COUNT...", nargs=-1, required=True, type=CountType())
@wish_options
@click.pass_context
def scale(
    ctx: click.Context,
    counts: tuple[tuple[str, int], ...],
    config_path: str | None,
    strategy: str | None,
    plan: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Bring layers (connection_points, access_points, matchers, exit_points) to so many slices, all in one operation.

    Publishers and subscribers go on meanwhile. Ctrl-C ends the waiting, not the operation: `kittiwake abort` does that.
    Exit code 0 when it is done, 1 if it is refused or given up.

    \b
    kittiwake scale matchers=3
    kittiwake scale matchers=4 exit_points=2 access_points=2
    kittiwake scale matchers=8 --plan
    """
    layers = [layer for layer, _ in counts]
    twice = next((layer for layer in layers if layers.count(layer) > 1), None)
    if twice is not None:
        raise click.UsageError(f"{twice} is given twice", ctx)
    _wish(ctx, config_path, {**dict(counts), "strategy": strategy}, plan, no_wait, as_json)


@click.command(short_help="Put a new process in the place of a slice.")
@click.argument("layer", type=click.Choice([name.removesuffix("s") for name in LAYERS]))
@click.argument("slot", type=click.IntRange(min=0))
@wish_options
@click.pass_context
def replace(
    ctx: click.Context,
    layer: str,
    slot: int,
    config_path: str | None,
    strategy: str | None,
    plan: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Have a new process take over what slice SLOT of LAYER does; it gets another slot, and the old one ends.

    As `kittiwake scale` otherwise.

    \b
    kittiwake replace matcher 2
    """
    _wish(ctx, config_path, {"replace": [(layer, slot)], "strategy": strategy}, plan, no_wait, as_json)


def _wish(
    ctx: click.Context, config_path: str | None, wish: Document, plan: bool, no_wait: bool, as_json: bool
) -> None:
    if plan:
        _show(ask(config_path, lambda admin: admin.plan(**wish)), describe_plan, as_json)
        return
    operation = ask(config_path, lambda admin: admin.scale(**wish, wait=False))
    if not no_wait and operation["state"] == "running":
        number = operation["number"]
        click.echo(f"kittiwake: operation {number}: {changes(operation['former'], operation['wanted'])}", err=True)
        try:
            operation = ask(config_path, lambda admin: admin.wait(number))
        except Interrupted:
            click.echo(f"kittiwake: operation {number} goes on; see `kittiwake transitions`", err=True)
            raise
    _show(operation, describe_operation, as_json)
    ctx.exit(1 if operation["state"] == "aborted" else 0)


@click.command(short_help="Show what the view changes were.")
@config_option
@json_option
def transitions(config_path: str | None, as_json: bool) -> None:
    """Show the last operations, oldest first: what was started and stopped, key groups moved and the fewest possible,
    subscriptions copied and their bytes, how long it took in all and in each phase, and why it was given up if it was.

    \b
    kittiwake transitions
    kittiwake transitions --json
    """
    _show(ask(config_path, lambda admin: admin.transitions()), describe_history, as_json)


@click.command(short_help="Give up the view change that runs.")
@config_option
@json_option
def abort(config_path: str | None, as_json: bool) -> None:
    """Give up the operation that runs. View changes that are decided stay; nothing is lost. Exit code 1 if none runs.

    \b
    kittiwake abort
    """
    _show(ask(config_path, lambda admin: admin.abort()), describe_operation, as_json)


def ask(config_path: str | None, work: Callable[[Admin], Coroutine[Any, Any, Any]]) -> Any:
    """Return what the cluster of this configuration answers."""
    config = load_config(config_path)

    async def asked() -> Any:
        from actors.asking import open_admin

        return await work(open_admin(config))

    return run(lambda _: asked())


def _show(document: Any, describe: Callable[[Any], str], as_json: bool) -> None:
    click.echo(json.dumps(document, indent=2) if as_json else describe(document))
