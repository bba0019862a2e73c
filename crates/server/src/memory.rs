//! How the node's memory becomes the budgets of its shards.
//!
//! What fills up over time is counted, piece by piece, against a shard's budget: memtables, caches, reads, kept readers, requests. What
//! is not is set aside before: the process itself, connections, the buffers of flushes, compactions and pages on their way, indexes
//! and filters of sstables, and what the allocator needs beyond what it was asked for: memtables and caches are freed in another order than they
//! were filled, and its pages stay partly used (measured after a minute of writes and reads: 126 MiB in use, 293 resident).
//! Measured with `bench/storage --only memory`: without that, 384 MiB became 470.

use crate::config::Config;
use crate::config::setting::{Setting, Size};
use crate::start_error::StartError;
use engine::commitlog::CommitlogConfig;

/// The least memory for each shard, in bytes. With less, a shard cannot hold its memtables and one
/// request at a time.
const LEAST: u64 = 16 << 20;
/// Segments of the commitlog that a shard preallocates at start.
const PREALLOCATED_SEGMENTS: u64 = 2;
/// Set aside for the process, in bytes.
const PROCESS: u64 = 24 << 20;
/// Set aside for each shard, in bytes.
const SHARD: u64 = 64 << 20;
/// At most so many tenths of the memory are set aside.
const MOST_TENTHS: u64 = 4;
/// Where the budgets of all shards together are less than this, the kernel is asked not to make huge pages: where a few kilobytes of two megabytes are used, it keeps all
/// of them (measured: 40 MiB more of 384). Buffers of disk I/O lie in some all the same.
const HUGE_PAGES_FROM: u64 = 1 << 30;

/// The part of a shard's budget that its buffers of disk I/O may hold in huge pages: a sixteenth.
const IO_BUFFERS: usize = 16;
/// And no more than this: some hundred reads at once.
const MOST_IO_BUFFERS: usize = 64 << 20;

/// Refuses less memory than the shards need.
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

/// The size of the commitlog's segments: that of the configuration, or less. The segments that a
/// shard preallocates take at most as much disk as the shard has memory, and the least log of all
/// shards fits into `commitlog_total_space_in_mb`.
pub fn segment_size(config: &Config, shards: usize, shard_memory: usize) -> u64 {
    let of_memory = shard_memory as u64 / PREALLOCATED_SEGMENTS;
    let of_total = |Size(total)| total / shards as u64 / CommitlogConfig::least_total_size(1);
    let most = config.commitlog_total_space_in_mb.map_or(of_memory, |total| of_memory.min(of_total(total)));
    config.commitlog_segment_size_in_mb.0.min((most >> 20 << 20).max(1 << 20))
}

/// The budget of each of the shards of a node that may use so many bytes.
pub fn of_shard(memory: u64, shards: usize) -> usize {
    let shards = shards.max(1) as u64;
    let aside = (PROCESS + SHARD * shards).min(memory / 10 * MOST_TENTHS);
    ((memory - aside) / shards) as usize
}

/// What the buffers of disk I/O of a shard with such a budget may hold in huge pages: in place of buffers on the heap, which are not counted either.
/// What is set aside is for these, too; where there is much memory they may take more than that.
pub fn io_buffers(shard_memory: usize) -> usize {
    (shard_memory / IO_BUFFERS).min(MOST_IO_BUFFERS)
}

/// Tells the kernel how a process with such budgets uses memory. To be called before it does.
pub fn prepare(budgets: u64) {
    if budgets < HUGE_PAGES_FROM
        && let Err(error) = rt::allocator::no_huge_pages()
    {
        tracing::debug!(%error, "huge pages cannot be refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_is_set_aside() {
        const MIB: u64 = 1 << 20;
        for (memory, shards, each) in
            [(384, 2, 116), (2048, 2, 948), (2048, 1, 1960), (128, 1, 76), (64, 8, 4), (4, 1, 2)]
        {
            assert_eq!(of_shard(memory * MIB, shards) as u64 / MIB, each, "{memory} MiB over {shards} shards");
        }
        assert_eq!(of_shard(0, 4), 0);
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
