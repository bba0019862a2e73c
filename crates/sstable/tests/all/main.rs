//! The tests of sstables as files, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes.

mod behaviour;
mod corruption;
mod fixture_flips;
mod fixtures;
mod large;
mod large_rows;
mod random;
mod relabel;
mod round_trip;
mod swapped;
