//! The tests on the simulated machine, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes. `seeds` is a program of
//! its own, because it reports the progress and the seeds of its trials.

#![cfg(feature = "sim")]

mod cluster;
mod copies;
mod crashes;
mod errors;
mod faults;
mod following;
mod hints;
mod internode;
mod joining;
mod laws;
mod raft;
