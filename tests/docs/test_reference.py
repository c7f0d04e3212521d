"""The reference written by hand names what the command line has; the generated one has all of it."""

import re

from sitegen import ROOT, commands

from zndraw_joblib import cli

FOUND = list(commands.each_command(cli.all_commands()))
OPTIONS = {flag for _, one in FOUND for param in one.params for flag in [*param.opts, *param.secondary_opts]}
# Those of the program itself.
OTHERS = {"--help", "--version", "--install-completion"}


def test_every_option_that_is_named_exists() -> None:
    """A renamed option is renamed in the page of the command line and in the guides too."""
    pages = [ROOT / "docs" / "reference" / "cli.md", *(ROOT / "docs" / "how-to").glob("workers.md")]
    named = {flag for page in pages for flag in re.findall(r"`(--[a-z-]+)", page.read_text())}
    assert len(named) > 30
    assert named - OPTIONS - OTHERS == set()


def test_the_generated_page_has_every_command_and_option() -> None:
    """Groups of commands have a section for each command."""
    page = commands.page()
    assert {" ".join(words) for words, _ in FOUND} == set(re.findall(r"^## (.+)$", page, re.MULTILINE))
    assert {flag for flag in OPTIONS if flag.startswith("-") and f"`{flag}`" not in page} == set()
