//! The tests of the replica, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes.

mod counters;
mod digests;
mod hot;
mod invisible;
mod malformed;
mod queriers;
mod reports;
mod support;
