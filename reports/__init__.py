"""From results on disk to one HTML file.

`figures` turns rows into curves, `fidelity` pairs predictions with
measurements, `plots` draws, `html` puts it together. Of `scenarios` it uses
`base` and `results` only: it knows what a figure and a result are, and no
scenario.
"""
