"""The object store of a node: shared memory, and values as bytes.

=============== ==============================================================
file            concept
=============== ==============================================================
allocator       which part of the arena belongs to which object: pure arithmetic
arena           the shared memory itself
prefault        pages touched ahead of need
copying         copies into the arena, by several threads where that pays
untouched       values into the arena, past the mapping where no page is yet
spill_file      where evicted objects are on disk
serialization   values to bytes and back, without a copy on the reader's side
blob            a value of a given size, for programs that only move bytes
=============== ==============================================================

Nothing outside this package maps or names shared memory; how a file descriptor
gets from one process to another is the business of ``processes``.
"""
