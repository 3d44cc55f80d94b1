"""Distributed reference counting: every object has an owner, which knows its borrowers.

The paper leaves garbage collection out; this is the ownership of Ray 1.0 (Wang et al., NSDI
2021). The worker or driver whose task or put makes an array owns it, and releases it when no
reference is left anywhere. A process that gets a reference inside of a value is a *borrower*.

State
-----
* owner: `Borrowers`, one per array that left its process: borrowers by epoch, nodes by how many of
  their values contain a reference;
* borrower: `Loan`, one per borrowed array: owner, epoch, count, and the values it came in;
* node: which values on the node contain references (`ContainedReferences.contained`).

A borrower enters the owner's book under a new *epoch* each time that it begins to borrow, and
strikes itself off with "all up to this epoch". So messages may come twice, late, or in another
order, and the count is right when all have come.

Messages
--------
RefUpdates      borrower, or the node of a value, -> owner: ENTER, ENTER_AND_CONFIRM, STRIKE, GONE
RefUpdates      owner -> borrower: ENTERED
BorrowersGone   node -> its clients: a node has died, and its borrowers with it
ResultRefs      inside results: references that a task has kept, or its value contains

Promises
--------
* No reference is lost: each holder gives a reference away only while it is in the owner's book
  or is held itself, until the next holder is in it. So the owner never releases an array early.
* A borrower's death ends its loans (G8): its node, or the nodes that the GCS notifies of the
  node's death, notify the owners.

Modules
-------
owner_table           which client of a node owns which array
reference_counter     a client's side: lent and borrowed arrays, and the borrowers of each
contained_references  a node's side: references inside of values that it keeps
"""
