"""Distributed reference counting: every object has an owner, which knows its borrowers.

The paper omits garbage collection; this is the ownership of Ray 1.0 (Wang et al., NSDI
2021). The worker or driver whose task or put makes an array owns it, and releases it when no
reference is left anywhere. A process that gets a reference inside of a value is a *borrower*.

State
-----
* owner: `Borrowers`, one per array whose references have left the owner's process: each client that
  borrows it with its loan number, each node with the number of its values that contain a reference;
* borrower: `Loan`, one per borrowed array: number, owner, count, and the values it came in;
* node: which values on the node contain references (`ContainedReferences.contained`).

A borrower registers with the owner under a new, higher *loan number* each time that it begins to
borrow, and deregisters all its loans up to a number. So messages may be repeated, late or
reordered, and the count is right when all have arrived.

Messages
--------
RefUpdates      borrower, or the node of a value, -> owner: REGISTER, REGISTER_AND_CONFIRM,
                DEREGISTER, GONE
RefUpdates      owner -> borrower: REGISTERED
BorrowersGone   node -> its clients: a node has died, and its borrowers with it
ResultRefs      inside results: references that a task has kept, or its value contains

Promises
--------
* No reference is lost: a borrower that passes a reference on stays registered with the owner until
  the next borrower is registered. So the owner never releases an array early.
* A borrower's death ends its loans (G8): its node notifies the owners of a worker's death, and the
  GCS notifies every node of a node's death.

Modules
-------
owner_table           which client of a node owns which array
reference_counter     a client's side: lent and borrowed arrays, and the borrowers of each
contained_references  a node's side: references inside of values that it keeps
"""
