"""The command line: one file a verb, each with `configure(parser)` and `run(args)`."""
