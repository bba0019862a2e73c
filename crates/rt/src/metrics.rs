//! The metrics of a shard.

use crate::ctx;
use crate::fs::IoClass;
use crate::group::Group;
use std::cell::Cell;
use std::time::Duration;

/// A counter that only its shard uses.
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
    pub groups: [GroupCounters; Group::COUNT],
    pub spawned: Count,
    /// Computations given to a helper thread.
    pub offloaded: Count,
    pub tasks: Count,
    pub io: [IoCounters; IoClass::COUNT],
    pub io_submits: Count,
    pub io_errors: Count,
}

/// The live counters of one scheduling group. Times are in nanoseconds of the executor's clock.
#[derive(Default)]
pub(crate) struct GroupCounters {
    pub runtime_nanos: Count,
    pub violation_nanos: Count,
    pub tasks: Count,
    /// The sum of the times that ready tasks waited.
    pub task_wait_nanos: Count,
    /// How long the group had ready tasks while others ran.
    pub starve_nanos: Count,
    /// Since when the group has had ready tasks without running.
    pub ready_since: Cell<u64>,
}

impl GroupCounters {
    /// Records that a task begins that was ready since `since`.
    #[inline]
    pub fn begins(&self, now: u64, since: u64) {
        self.tasks.add(1);
        self.task_wait_nanos.add(now.saturating_sub(since));
        self.starve_nanos.add(now.saturating_sub(self.ready_since.get()));
    }

    /// Records that a poll of `nanos` has ended.
    #[inline]
    pub fn ran(&self, now: u64, nanos: u64, is_violation: bool) {
        self.runtime_nanos.add(nanos);
        self.ready_since.set(now);
        if is_violation {
            self.violation_nanos.add(nanos);
        }
    }
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

/// A copy of a shard's counters. Everything but `tasks`, `in_flight`, `queued` and other current
/// values counts from the start of the shard.
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
    /// The number of batches that had to wake a sleeping shard.
    pub mail_wakes_sent: u64,
    /// Time spent in turns.
    pub busy: Duration,
    /// Time spent between turns. Utilisation is busy / (busy + idle).
    pub idle: Duration,
    /// Input that is left in sockets because the poll's time slice was used up, in bytes.
    pub input_left: u64,
    /// Input received, in bytes.
    pub input_received: u64,
    /// The sum, over time, of the input that was left, in bytes times seconds.
    pub input_waited: f64,
    /// The part that background groups get of their demands, from 0 to 1.
    pub governor_allowance: f64,
    /// The scheduling groups, indexed by `Group as usize`.
    pub groups: [GroupMetrics; Group::COUNT],
    /// Tasks ever spawned.
    pub spawned: u64,
    /// Tasks that exist now.
    pub tasks: u64,
    /// I/O by class, indexed by `IoClass as usize`.
    pub io: [IoMetrics; IoClass::COUNT],
    /// Submissions to the kernel (each one system call).
    pub io_submits: u64,
    /// I/O operations that failed.
    pub io_errors: u64,
}

/// A scheduling group.
#[derive(Debug, Clone, Default)]
pub struct GroupMetrics {
    /// Run time of its tasks.
    pub runtime: Duration,
    /// The part of it in polls longer than 500 us.
    pub violations: Duration,
    /// Polls of its tasks.
    pub tasks: u64,
    /// The sum of the times that its ready tasks waited for their polls.
    pub task_wait: Duration,
    /// How long it had ready tasks while other groups ran.
    pub starved: Duration,
    /// Its ready tasks now.
    pub queue_length: u64,
    /// Its shares now.
    pub shares: u32,
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
    /// Bytes requested from the device, including alignment.
    pub read_bytes: u64,
    /// Bytes sent to the device, including padding.
    pub written_bytes: u64,
    /// Operations in the kernel now.
    pub in_flight: u64,
    /// Operations that wait for a free slot now.
    pub queued: u64,
}

impl ShardMetrics {
    /// The counters of a scheduling group.
    pub fn group(&self, group: Group) -> &GroupMetrics {
        &self.groups[group as usize]
    }

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
            input_left: c.backlog.left.get(),
            input_received: c.backlog.received.get(),
            input_waited: c.backlog.waited(c.clock.coarse()),
            governor_allowance: c.governor.allowance(),
            groups: Group::ALL.map(|group| {
                let n = &n.groups[group as usize];
                GroupMetrics {
                    runtime: Duration::from_nanos(n.runtime_nanos.get()),
                    violations: Duration::from_nanos(n.violation_nanos.get()),
                    tasks: n.tasks.get(),
                    task_wait: Duration::from_nanos(n.task_wait_nanos.get()),
                    starved: Duration::from_nanos(n.starve_nanos.get()),
                    queue_length: c.executor.queue_length(group) as u64,
                    shares: c.executor.clock.shares(group),
                }
            }),
            spawned: n.spawned.get(),
            tasks: n.tasks.get(),
            io: std::array::from_fn(io),
            io_submits: n.io_submits.get(),
            io_errors: n.io_errors.get(),
        }
    })
}
