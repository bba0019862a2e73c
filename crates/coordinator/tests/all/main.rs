//! The tests of coordinators and replicas on nodes of one process, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes.

mod aggregates;
mod coalescing;
mod hinting;
mod levels;
mod limit_reports;
mod limits;
mod limits_in_bytes;
mod moving;
mod moving_repairs;
mod paging;
mod protection;
mod repairs;
mod support;
mod truncating;
mod wired;
