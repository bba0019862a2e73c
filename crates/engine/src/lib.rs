//! All data that one shard stores: commitlog, memtables, tablets' sstable sets, compaction.
