"""The command line: ``python -m bertflow_lite --help``.

Exit codes: 0 done; 1 the input or the machine would not do (one line on stderr says why); 2 the
command was misspelled; 130 interrupted (finished sentences stay in the cache); 141 the reader of
the output closed it, as `head` does.

The commands hold no logic: each module reads arguments, calls the package and prints.
"""

from bertflow_lite.cli import measure, sentences, tables, training
from bertflow_lite.cli.common import BOOK, MEASURE, SENTENCES, app

__all__ = ["app", "measure", "sentences", "tables", "training"]

# --help shows the groups in this order; a command that names none makes stored runs.
for _command in app.registered_commands:
    _command.rich_help_panel = _command.rich_help_panel or BOOK
app.registered_commands.sort(
    key=lambda command: (SENTENCES, MEASURE, BOOK).index(str(command.rich_help_panel))
)
