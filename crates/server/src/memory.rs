//! How the node's memory becomes the budgets of its shards.
//!
//! What fills up over time is counted, piece by piece, against a shard's budget: memtables, caches, reads, kept readers, requests. What
//! is not is set aside before: the process itself, connections, the buffers of flushes, compactions and pages on their way, indexes
//! and filters of sstables, and what the allocator needs beyond what it was asked for: memtables and caches are freed in another order than they
//! were filled, and its pages stay partly used (measured after a minute of writes and reads: 126 MiB in use, 293 resident).
//! Measured with `bench/storage --only memory`: without that, 384 MiB became 470.

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
}
