"""The command line: flags, the run or comparison that they name, lists, progress, rehearsals."""
