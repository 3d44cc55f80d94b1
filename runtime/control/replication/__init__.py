"""Chain replication of the GCS, after van Renesse and Schneider (OSDI 2004).

The paper keeps the GCS available by replicating each shard in a chain. The replicas of a chain
apply the same commands in the same order to equal, deterministic state machines::

    client ──ChainRequest──> HEAD ──ChainCommands──> ... ──> TAIL ──ChainOutput──> client
                               <──────────ChainAck───────────┘
             master: decides on the members of each epoch (ChainConfigured)

* The **head** numbers each request and applies it. Every replica passes on the commands that it
  has applied, and keeps them until the tail has acknowledged them.
* Only the **tail** replies. So every replica has the commands whose effects a client has seen, and
  they survive the loss of all replicas but one. Reads are commands too: linearizable.
* The **master** removes a failed replica and adds a new one behind the tail. Each of its decisions
  begins a new *epoch*; a replica takes no command or acknowledgement of another epoch, which
  fences a replica that does not know the latest. A message of a later epoch waits for it.
* **Sessions**: a client numbers its requests and the machine numbers its outputs to the client.
  Both keep those that are not confirmed, so that each takes effect once, whichever replicas fail.

Recovery
--------
1. On a new epoch each replica sends its successor again every command that the tail may lack; the
   successor skips those it has. There is no gap: no replica acknowledges a command that its
   successor lacks.
2. On a new epoch each client sends the head again its unconfirmed requests, and the tail the number
   of the last output that it has; the tail sends those that follow.
3. A new replica gets a snapshot of the tail's state, then the commands since, while the chain
   serves. From the snapshot on the tail confirms only commands that the new replica has
   acknowledged. The new replica becomes a member, and the tail, once it has applied all commands
   up to its first acknowledgement: else commands could be lost with the old tail after their
   clients have the answers.
4. With storage the chain is one replica, in the head's process, and has a log: it answers no
   command that is not in the log. When the head is killed, the next one restores the machine
   from the log; clients attach to it as after any new configuration.

5. Of a client and a replica that cannot reach each other one leaves (`master`): a client that only
   receives outputs would not miss them.

The head's process, with the master, is not replicated: without storage the cluster ends with it.

Promises: an acknowledged write survives the loss of any replica but the last, or with a log the
loss of the head; reads are linearizable; each request takes effect once.

Cost: per request of a chain of n, n + 1 messages and n times the machine's own work; memory for
the commands under way.

``replica``         one replica: numbers, applies, passes on and answers commands; as tail, sends
                    the joining one the state and reports when it has caught up
``state_machine``   components that are driven by commands alone; sessions and timers as data
``snapshot``        a machine's whole state as bytes, and back
``client``          a component whose GCS is a chain
``master``          decides which replica joins or leaves, and the epoch in which it is a member
``replica_hosts``   on which host a new replica runs
``storage``         what a durable replica writes to its file, and how it recovers from that
"""
