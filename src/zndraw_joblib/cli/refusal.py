"""What ends a command."""

import typer


class Refusal(typer.TyperException):
    """The command cannot be done. The message is one line, for the person who typed it."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Misuse(Refusal):
    """What was typed or configured can never work."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)
