"""The two ways a call can go wrong that a user can do something about."""


class InputError(ValueError):
    """What was given is wrong: an option, a config, the content of a file. Exit status 2."""


class RunError(RuntimeError):
    """The call was right, but the work could not be done. Exit status 1."""
