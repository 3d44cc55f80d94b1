"""The object store of a node: shared memory.

=============== ==============================================================
allocator       which part of the arena belongs to which object: pure arithmetic
arena           the shared memory itself
arena_writer    values into the arena, by several threads, past the mapping
scratch         memory of one process, or of a process and its forked children
=============== ==============================================================

No other package maps or names shared memory; ``processes`` passes its descriptor on.
"""
