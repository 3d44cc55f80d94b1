"""Chain replication of the GCS, after van Renesse and Schneider (OSDI 2004).

The paper keeps the GCS available by replicating each shard in a chain. The replicas of a chain
apply the same commands in the same order to equal, deterministic state machines::

    client ──ChainRequest──> HEAD ──ChainCommands──> ... ──> TAIL ──ChainOutput──> client
                               <──────────ChainAck───────────┘
             master: decides on the members of each epoch (ChainConfigured)

* The **head** numbers each request and applies it. Every replica passes on the commands that it
  has applied, and keeps them until the tail has acknowledged them.
* Only the **tail** replies. So every replica has what a client has seen: it survives the loss of
  all replicas but one. Reads are commands too, in the same order: linearizable.
* The **master** removes a failed replica and adds a new one behind the tail. Each of its decisions
  begins a new *epoch*; a replica takes no command or acknowledgement of another epoch, which
  fences a replica that has not heard of the latest. A message of a later epoch waits for it.
* **Sessions**: a client numbers its requests and the machine numbers the client's outputs; both
  keep what is not confirmed, so that each takes effect once, whichever replicas fail.

Recovery
--------
1. On a new epoch each replica sends its successor again every command that the tail may lack; the
   successor skips what it has. There is no gap: no replica acknowledges what its successor lacks.
2. On a new epoch each client sends the head again its unconfirmed requests, and tells the tail the
   last output that it has; the tail sends those that follow.
3. A new replica gets the tail's flushed rows and a snapshot, then the commands since, while the
   tail serves (`state_transfer`). From the snapshot on the tail confirms nothing that the new
   replica has not acknowledged. The new replica is a member, and the tail, once it has applied all
   that was answered before: else the old tail could fail with what its clients were told.
4. With storage a replica has a log, and passes on, acknowledges and answers nothing before its log
   has it. If all replicas fail, the longest log of the latest epoch has all that was answered.
5. A new master (the head process was killed) asks the living replicas for the configuration
   (`master_recovery`).

Promises: an acknowledged write survives the loss of any replica but the last, and with logs of
all; reads are linearizable; each request takes effect once.

Cost: per request of a chain of n, n + 1 messages and n times the machine's own work; memory for
the commands under way.

``replica``         one replica: what it does with each message
``position``        a replica's state (joining, serving, fenced), its epoch and its neighbours
``state_machine``   components that are driven by commands alone; sessions and timers as data
``snapshot``        a machine's whole state as bytes, and back
``state_transfer``  rows and a snapshot on their way to a replica that joins
``replies``         which outputs the tail owes which client
``clock``           the chain's time: the head's clock, which never goes back
``log``             the log of a durable replica
``client``          a component whose GCS is a chain, and that need not know it
``master``          decides on the members of a chain
``master_recovery`` how a new master finds the chain
"""
