//! A whole node on the simulated machine, its disk at our mercy, and checkers that say whether it kept its promises.
//!
//! [`workload`] makes seeded operations and knows what each state of the data would be; [`node`] runs a node that carries them out,
//! cuts its power, and starts it again; [`checker`] compares. A seed gives the same run each time. Everything here exists only
//! under feature `sim`.
#![cfg(feature = "sim")]

pub mod checker;
pub mod node;
pub mod workload;
