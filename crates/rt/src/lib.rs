//! The machine that a shard runs on. The only crate that uses threads, sockets, files, clocks and
//! randomness directly.
//!
//! A shard is one executor of `!Send` tasks with its own context: services, mailboxes, files,
//! clock, random numbers. In production every shard is a pinned thread with one io_uring. Under
//! feature `sim`, a whole cluster of shards runs in one thread with seeded time, network and disk.
//! No code above this crate knows on which of the two it runs.
//!
//! This crate does not know rows, queries or the roles of nodes, and keeps no state outside a
//! shard's context.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "rt is what wraps them")]

pub mod allocator;
mod backlog;
pub mod fs;
pub mod governor;
pub mod hash;
pub mod hint;
pub mod host;
pub mod metrics;
pub mod net;
pub mod offload;
pub mod random;
pub mod shard;
pub mod side_thread;
#[cfg(feature = "sim")]
pub mod sim;
pub mod small_file;
pub mod sync;
pub mod task;
pub mod time;
pub mod tls;

mod clock;
mod ctx;
mod executor;
mod fair_clock;
mod group;
mod log_throttle;
mod machine;
mod mailbox;
mod pieces;
mod preemption;
mod stall_log;
mod throttle;
mod write_queue;

pub use log_throttle::LogThrottle;
pub use machine::{block_on, try_block_on};
pub use pieces::Pieces;
pub use shard::{Machine, MachineConfig, MachineHandle, Remote, ShardId};
pub use throttle::Throttle;
pub use write_queue::WriteQueue;
