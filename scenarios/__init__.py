"""One file per figure or table of the paper, and the command line that runs them.

`base` is the shape of a scenario file, `registry` finds them, `runner` runs
them, `results` is what they leave on disk, `cli` is what users type, `interactive` what
notebooks and programs call. Only the scenario files themselves know a figure's number.
"""
