//! What a shard counts about itself.

use crate::ctx;
use crate::fs::IoClass;
use std::cell::Cell;
use std::time::Duration;

/// A counter that only its shard touches.
#[derive(Default)]
pub(crate) struct Count(Cell<u64>);

impl Count {
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.set(self.0.get().wrapping_sub(n));
    }

    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// The live counters of a shard.
#[derive(Default)]
pub(crate) struct Counters {
    pub polls: Count,
    pub turns: Count,
    pub stalls: Count,
    pub longest_poll_nanos: Cell<u64>,
    pub hops_sent: Count,
    pub hops_received: Count,
    pub mail_batches_sent: Count,
    pub mail_wakes_sent: Count,
    pub busy_nanos: Count,
    pub idle_nanos: Count,
    pub background_nanos: Count,
    pub spawned: Count,
    pub tasks: Count,
    pub io: [IoCounters; 3],
    pub io_submits: Count,
    pub io_errors: Count,
}

/// The live I/O counters of one class.
#[derive(Default)]
pub(crate) struct IoCounters {
    pub reads: Count,
    pub writes: Count,
    pub syncs: Count,
    pub read_bytes: Count,
    pub written_bytes: Count,
    pub in_flight: Count,
    pub queued: Count,
}

/// A copy of a shard's counters. Everything but `tasks`, `in_flight` and `queued` counts from the start of the shard.
#[derive(Debug, Clone, Default)]
pub struct ShardMetrics {
    /// Polls of tasks.
    pub polls: u64,
    /// Turns of the executor (about one per wake).
    pub turns: u64,
    /// Polls longer than 500 us.
    pub stalls: u64,
    /// The longest poll so far.
    pub longest_poll: Duration,
    /// Calls sent to other shards.
    pub hops_sent: u64,
    /// Calls received from other shards and foreign threads.
    pub hops_received: u64,
    /// Batches of messages posted to other shards.
    pub mail_batches_sent: u64,
    /// How many of those had to wake a sleeping shard.
    pub mail_wakes_sent: u64,
    /// Time spent in turns.
    pub busy: Duration,
    /// Time spent between turns. Utilisation is busy / (busy + idle).
    pub idle: Duration,
    /// The part of `busy` that ran background work.
    pub background: Duration,
    /// Tasks ever spawned.
    pub spawned: u64,
    /// Tasks alive now.
    pub tasks: u64,
    /// I/O by class, indexed by `IoClass as usize`.
    pub io: [IoMetrics; 3],
    /// Submissions to the kernel (each one system call).
    pub io_submits: u64,
    /// I/O operations that failed.
    pub io_errors: u64,
}

/// I/O of one class.
#[derive(Debug, Clone, Default)]
pub struct IoMetrics {
    /// Reads started.
    pub reads: u64,
    /// Writes started.
    pub writes: u64,
    /// fsync and fdatasync calls started.
    pub syncs: u64,
    /// Bytes asked of the device, alignment included.
    pub read_bytes: u64,
    /// Bytes handed to the device, padding included.
    pub written_bytes: u64,
    /// Operations in the kernel now.
    pub in_flight: u64,
    /// Operations waiting for a free slot now.
    pub queued: u64,
}

impl ShardMetrics {
    /// The counters of `class`.
    pub fn of(&self, class: IoClass) -> &IoMetrics {
        &self.io[class as usize]
    }
}

/// A copy of this shard's counters.
pub fn snapshot() -> ShardMetrics {
    ctx::with(|c| {
        let n = &c.counters;
        let io = |i: usize| {
            let n = &n.io[i];
            IoMetrics {
                reads: n.reads.get(),
                writes: n.writes.get(),
                syncs: n.syncs.get(),
                read_bytes: n.read_bytes.get(),
                written_bytes: n.written_bytes.get(),
                in_flight: n.in_flight.get(),
                queued: n.queued.get(),
            }
        };
        ShardMetrics {
            polls: n.polls.get(),
            turns: n.turns.get(),
            stalls: n.stalls.get(),
            longest_poll: Duration::from_nanos(n.longest_poll_nanos.get()),
            hops_sent: n.hops_sent.get(),
            hops_received: n.hops_received.get(),
            mail_batches_sent: n.mail_batches_sent.get(),
            mail_wakes_sent: n.mail_wakes_sent.get(),
            busy: Duration::from_nanos(n.busy_nanos.get()),
            idle: Duration::from_nanos(n.idle_nanos.get()),
            background: Duration::from_nanos(n.background_nanos.get()),
            spawned: n.spawned.get(),
            tasks: n.tasks.get(),
            io: [io(0), io(1), io(2)],
            io_submits: n.io_submits.get(),
            io_errors: n.io_errors.get(),
        }
    })
}
