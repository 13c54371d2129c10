"""Errors that end a command with a message for its user.

    FleetError            every error that the user can act on; the CLI prints its message, exit 2
    ├── ConfigError       a run file, a variable or an option is wrong
    ├── InputError        a dataset cannot be read
    └── LedgerUnavailable Redis does not answer

The workers' errors, which decide what becomes of a prompt, are in `workers/errors.py`.
"""


class FleetError(Exception):
    """Something that the user can act on; the message says what, where and what to do."""


class ConfigError(FleetError):
    """A run file, an environment variable or an option is wrong."""


class InputError(FleetError):
    """A dataset cannot be read at all (single rows are set aside instead)."""


class LedgerUnavailable(FleetError):
    """Redis does not answer."""
