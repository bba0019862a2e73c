//! Measurements inside one process: a node of one shard without ports, driven frame by frame.
//!
//! Measurements of complete processes beside other databases are the scripts beside this crate
//! (`make bench-one-node`, `make bench-paging`, `make bench-storage`, `make bench-goodput`).

pub mod allocations;
pub mod harness;
pub mod paging;
pub mod wire;
