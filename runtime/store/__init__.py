"""The object store of a node: shared memory.

=============== ==============================================================
allocator       assigns parts of the arena to objects: pure arithmetic
arena           the shared memory itself
arena_writer    writes values into the arena, with several threads or by system calls
scratch         anonymous memory of one process, or shared with its forked children
=============== ==============================================================

No other package maps shared memory; ``processes`` sends its descriptor to workers.
"""
