"""Short programs that run unchanged on Ray and on raytwin, here in real or virtual time.

Each has ``main(ray)``, which prints its result and returns it; run as a script it
uses Ray, and ``main(raytwin)`` is the same program on raytwin.
"""

from __future__ import annotations
