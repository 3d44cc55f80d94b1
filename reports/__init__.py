"""From results on disk to one HTML file.

`figures` turns rows into curves, `fidelity` pairs predictions with measurements, `plots`, `lanes`,
`benchmarks` and `scatter` draw, `svg` and `sketch` turn drawings into parts of a page. `html` puts
the report together, `fragment` one run for a notebook; both render by `templating`. `measurements`
reads the files beside results. Of `scenarios` it uses `core` only: it knows what a figure and a
result are, and no scenario.
"""
