"""The command line as `python -m trainjob`, for where the program `trainjob` isn't on the PATH."""

from trainjob.cli import main

main(prog_name="trainjob")
