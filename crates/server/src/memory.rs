//! How the node's memory is divided into the budgets of its shards.
//!
//! Large and growing consumers are counted against a shard's budget: memtables, caches, reads,
//! cached queriers, requests. Other memory is reserved in advance: for the process itself,
//! connections, buffers of flushes, compactions and pages, indexes and filters of sstables, counts
//! of rate limits, and the allocator.
//!
//! Memory that is freed in another order than it was filled leaves the allocator's pages partly
//! used, and resident. So most rows of memtables, and pages of the cache, are in blocks that are
//! freed together (`engine::memtable`, `sstable::cache`). Before they were, a node with 2 GiB used
//! 2.2 GiB; since then it uses 1.6 GiB (`bench/storage --only memory`).
//!
//! Allocated one by one are: cached rows, nodes of memtables, buffers, and rows of memtables that
//! replace others or are large for their memtable. If these keep too much resident, memtables are
//! flushed (`memory_guard`).

use crate::config::Config;
use crate::config::setting::{Setting, Size};
use crate::start_error::StartError;
use engine::commitlog::CommitlogConfig;
use replica::limiter;

/// The minimum memory for each shard, in bytes. With less, a shard cannot hold its memtables and
/// one request at a time.
const LEAST: u64 = 16 << 20;
/// Segments of the commitlog that a shard preallocates at start.
const PREALLOCATED_SEGMENTS: u64 = 2;
/// Reserved for the process, in bytes.
const PROCESS: u64 = 24 << 20;
/// Reserved for each shard, in bytes.
const SHARD: u64 = 64 << 20;
/// At most this many tenths of the memory are reserved.
const MOST_TENTHS: u64 = 4;
/// If the budgets of all shards together are smaller than this, the node asks the kernel not to use
/// huge pages. With them, two megabytes are resident when a few kilobytes are used (measured: 40
/// MiB more of 384). Buffers of disk I/O use some huge pages nevertheless. Without them, cached
/// reads took 12 to 25 % more CPU time.
const HUGE_PAGES_FROM: u64 = 1 << 30;

/// The fraction of a shard's budget that its I/O buffers may take in huge pages: a sixteenth.
const IO_BUFFERS: usize = 16;
/// The maximum in bytes: enough for some hundred concurrent reads.
const MOST_IO_BUFFERS: usize = 64 << 20;

/// The fraction of a shard's budget that the counts of rate limits may take: a sixteenth.
const RATE_LIMITER: usize = 16;

/// Refuses a node whose memory is too small for its shards.
pub fn check(memory: u64, shards: usize) -> Result<(), StartError> {
    let needed = LEAST * shards as u64;
    if memory >= needed {
        return Ok(());
    }
    let show = |bytes| Size::<1>(bytes).show();
    Err(StartError(format!(
        "{} of memory is not enough for {shards} shards: each needs at least {}. Set memory (--memory) to at least {}, or \
         shards (--shards) to at most {}. The shards of a node in a cluster of several nodes can only grow in number",
        show(memory >> 20 << 20),
        show(LEAST),
        show(needed),
        (memory / LEAST).max(1)
    )))
}

/// The size of commitlog segments: the configured size, or less. The segments that a shard
/// preallocates take at most as much disk as the shard has memory. The minimum logs of all shards
/// fit into `commitlog_total_space_in_mb`.
pub fn segment_size(config: &Config, shards: usize, shard_memory: usize) -> u64 {
    let of_memory = shard_memory as u64 / PREALLOCATED_SEGMENTS;
    let of_total = |Size(total)| total / shards as u64 / CommitlogConfig::least_total_size(1);
    let most = config.commitlog_total_space_in_mb.map_or(of_memory, |total| of_memory.min(of_total(total)));
    config.commitlog_segment_size_in_mb.0.min((most >> 20 << 20).max(1 << 20))
}

/// The budget of each shard of a node that may use this many bytes.
pub fn of_shard(memory: u64, shards: usize) -> usize {
    let shards = shards.max(1) as u64;
    let aside = (PROCESS + SHARD * shards).min(memory / 10 * MOST_TENTHS);
    ((memory - aside) / shards) as usize
}

/// Bytes of the counts of rate limits of a shard with this budget.
pub fn rate_limiter(config: &Config, shard_memory: usize) -> usize {
    (config.per_partition_rate_limiter_memory.0 as usize).min(shard_memory / RATE_LIMITER)
}

/// The budget of a shard without what its counts of rate limits take beyond their default, which
/// the reserve covers.
pub fn without_rate_limiter(config: &Config, shard_memory: usize) -> usize {
    shard_memory - rate_limiter(config, shard_memory).saturating_sub(limiter::DEFAULT_BYTES)
}

/// How many bytes of I/O buffers a shard with this budget may keep in huge pages. These replace
/// buffers on the heap, which are not counted either: the reserve covers both. With much memory
/// they may take more than the reserve.
pub fn io_buffers(shard_memory: usize) -> usize {
    (shard_memory / IO_BUFFERS).min(MOST_IO_BUFFERS)
}

/// Configures how the kernel maps the memory of a process with such budgets. Must be called before
/// that memory is used.
pub fn prepare(budgets: u64) {
    if budgets < HUGE_PAGES_FROM
        && let Err(error) = rt::allocator::no_huge_pages()
    {
        tracing::debug!(%error, "huge pages cannot be disabled");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncounted_memory_is_set_aside() {
        const MIB: u64 = 1 << 20;
        for (memory, shards, each) in
            [(384, 2, 116), (2048, 2, 948), (2048, 1, 1960), (128, 1, 76), (64, 8, 4), (4, 1, 2)]
        {
            assert_eq!(of_shard(memory * MIB, shards) as u64 / MIB, each, "{memory} MiB over {shards} shards");
        }
        assert_eq!(of_shard(0, 4), 0);
    }

    #[test]
    fn counts_of_rate_limits_are_bounded_and_taken_from_the_budget() {
        const MIB: usize = 1 << 20;
        for (setting, budget, counts, rest) in
            [(1, 100, 1, 100), (4, 100, 4, 97), (64, 100, 6, 95), (64, 2_000, 64, 1_937), (1, 4, 0, 4)]
        {
            let per_partition_rate_limiter_memory = Size(setting << 20);
            let config = Config { per_partition_rate_limiter_memory, ..Config::default() };
            assert_eq!(rate_limiter(&config, budget * MIB) / MIB, counts, "{setting} MiB of {budget}");
            assert_eq!(without_rate_limiter(&config, budget * MIB).div_ceil(MIB), rest, "{setting} MiB of {budget}");
        }
    }

    #[test]
    fn a_shard_without_memory_is_refused() {
        const MIB: u64 = 1 << 20;
        for (memory, shards) in [(64, 4), (256, 3), (512, 32), (16 << 10, 1024)] {
            assert!(check(memory * MIB, shards).is_ok(), "{memory} MiB over {shards} shards");
        }
        for (memory, shards, why) in [
            (
                64,
                100,
                "64MiB of memory is not enough for 100 shards: each needs at least 16MiB. Set memory (--memory) to at least 1600MiB, or shards (--shards) to at most 4.",
            ),
            (512, 1024, "at least 16GiB, or shards (--shards) to at most 32."),
            (8, 1, "to at most 1."),
        ] {
            let StartError(error) = check(memory * MIB, shards).expect_err("refused");
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn segments_fit_the_memory_and_the_space_of_a_shard() {
        const MIB: u64 = 1 << 20;
        let config = |segment: u64, total: Option<u64>| Config {
            commitlog_segment_size_in_mb: Size(segment * MIB),
            commitlog_total_space_in_mb: total.map(|total| Size(total * MIB)),
            ..Config::default()
        };
        for (segment, total, shards, memory, expected) in [
            (32, None, 1, 64, 32),
            (32, None, 1024, 16, 8),
            (32, None, 3, 13, 6),
            (4, None, 1, 16, 4),
            (32, None, 1, 1, 1),
            (32, Some(320), 2, 1024, 32),
            (32, Some(320), 8, 1024, 8),
            (32, Some(320), 8, 12, 6),
            (4, Some(32), 1, 1024, 4),
            (32, Some(1), 2, 1024, 1),
        ] {
            let size = segment_size(&config(segment, total), shards, (memory * MIB) as usize);
            assert_eq!(size / MIB, expected, "{segment} MiB, {total:?}, {shards} shards of {memory} MiB");
        }
    }
}
