//! The tests of nodes of one process, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes.

#![recursion_limit = "256"]

mod counters;
mod missing;
mod moving;
mod runs;
mod same_id;
mod snapshots;
mod support;
