"""`kittiwake completion`: the shell's script for completing kittiwake's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(SHELLS), default="bash")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes kittiwake's commands and options in SHELL.

    \b
    bash:  eval "$(kittiwake completion bash)"       in ~/.bashrc
    zsh:   eval "$(kittiwake completion zsh)"        in ~/.zshrc
    fish:  kittiwake completion fish | source        in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"click completes {shell}"
    complete = kind(ctx.find_root().command, {}, "kittiwake", "_KITTIWAKE_COMPLETE")
    # Not `complete.source()`: for bash that starts a bash to ask its version, which is not needed to print.
    click.echo(complete.source_template % complete.source_vars())
