//! The machine a shard runs on: tasks, mailboxes, files, clock, randomness, simulated world.
