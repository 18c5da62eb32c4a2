"""The command `kittiwake`. Importing this imports neither Ray nor numpy: a client's machine has neither."""

from __future__ import annotations

from typing import Any

import click

from actors.commands import (
    autoscaler,
    broker,
    busiest,
    check,
    completion,
    demo,
    output,
    policy,
    publish,
    replay,
    scale,
    subscribe,
    top,
    why,
)
from actors.commands.failures import friendly

EPILOG = """Exit codes: 0 all went well; 1 something was refused, failed or differs (of `why`: it does not match); 2 the
command line is wrong (of `why`: or there is no answer); 130 or 143 a signal ended it before it was done."""


class _Group(click.Group):
    """Turns expected trouble into one line and an exit code, for every command below it."""

    def invoke(self, ctx: click.Context) -> Any:
        with friendly(ctx):
            return super().invoke(ctx)


@click.group(cls=_Group, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kittiwake", prog_name="kittiwake")
def main() -> None:
    """Kittiwake delivers sensor readings to those whose filters they match.

    \b
    kittiwake demo                       see it work, on this machine
    kittiwake up                         start a cluster; in other terminals:
    kittiwake sub 'no2 > 40'             print the readings that match
    kittiwake pub < readings.jsonl       publish readings, one JSON object a line
    kittiwake scale matchers=3           have more processes, while it serves
    """


main.add_command(broker.up)
main.add_command(broker.status)
main.add_command(top.top)
main.add_command(scale.scale)
main.add_command(scale.replace)
main.add_command(scale.transitions)
main.add_command(scale.abort)
main.add_command(autoscaler.autoscaler)
main.add_command(policy.policy)
main.add_command(busiest.busiest)
main.add_command(publish.pub)
main.add_command(subscribe.sub)
main.add_command(replay.replay)
main.add_command(check.check)
main.add_command(why.why)
main.add_command(output.output)
main.add_command(demo.demo)
main.add_command(completion.completion)

if __name__ == "__main__":
    main()
