"""The supervisor: it starts the real srun, watches, and starts it again.

``main`` starts the first attempt with next to no imports; ``supervisor`` is
the loop; ``classify`` and ``decide`` are pure; ``observe`` and ``execute`` do
the I/O around them.
"""
