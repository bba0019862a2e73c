//! The simulated machine: whole clusters in one thread, with seeded time, network, disk and
//! scheduling.
//!
//! The same seed gives the same run, poll by poll; [`trace_hash`] verifies it. [`block_on`] and
//! [`run`] run one shard without a network. A [`World`] runs nodes of several shards, connected by
//! a simulated network. Needs `RUSTFLAGS="--cfg tokio_unstable"`, which allows seeding tokio's own
//! choices.

#![allow(unexpected_cfgs)]

#[cfg(not(any(tokio_unstable, doc)))]
compile_error!("feature `sim` needs RUSTFLAGS=\"--cfg tokio_unstable\" and its own target directory (target/sim)");

mod disk;
mod names;
pub(crate) mod net;
mod pause;
mod single;
mod trace;
mod world;

pub use disk::{Disk, DiskStats, Fault, Latency, Refusal, Unsynced};
pub(crate) use disk::{Failed, SimFile, SimLock};
pub use single::{PowerLost, block_on, run};
pub(crate) use trace::{SimShard, Trace};
pub use trace::{trace, trace_hash};
pub use world::{Network, World};

/// The start of simulated time: 2026-01-01 00:00:00 UTC, in nanoseconds since 1970.
pub(crate) const EPOCH_NANOS: i128 = 1_767_225_600_000_000_000;

/// Mixes numbers into a seed.
pub(crate) fn derive(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(seed ^ 0x9E37_79B9_7F4A_7C15, |mixed, &part| {
        // The finaliser of splitmix64.
        let mut x = mixed.wrapping_add(part).wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    })
}

#[cfg(test)]
mod tests;
