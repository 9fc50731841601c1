"""The web page of `trainjob ui`: all jobs, read-only, on this machine only."""
