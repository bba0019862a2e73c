//! The tests on the simulated machine, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes. `seeds` is a program of its own: its trials report their progress and their seeds.

#![cfg(feature = "sim")]

mod cluster;
mod errors;
mod faults;
mod following;
mod hints;
mod internode;
mod laws;
mod crashes;
mod raft;
