//! Measurements inside one process: a node of one shard without ports, driven frame by frame.
//!
//! Side-by-side measurements of whole processes are the scripts beside this crate (`make bench-one-node`, `make bench-paging`,
//! `make bench-storage`).

pub mod allocations;
pub mod harness;
pub mod paging;
