"""Commands that refuse an option given twice, of which the parser would keep only the last value."""

from typer.core import TyperCommand

__all__ = ["Command"]


class Command(TyperCommand):
    """A command whose options are given once, unless they are lists."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        """Parse, and raise a usage error for a repeated option."""
        # The parser lists every option as often as it was given; only their values does it overwrite.
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for option in given:
            if option.param_type_name == "option" and not option.multiple and given.count(option) > 1:
                ctx.fail(f"Give {option.opts[0]} once: it was given {given.count(option)} times.")
        return super().parse_args(ctx, args)
