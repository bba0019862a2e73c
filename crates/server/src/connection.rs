//! Client connections: from a socket to the query processor and back.
//!
//! Reading order: [`accept`] gives each socket to a shard, within the limit of [`slots`].
//! [`drive`] is the loop of one connection: it reads, starts each request, and writes all answers
//! of a wake together. [`arrival`] knows when requests were received, [`saturation`] whether the
//! shard has idle time. [`client`] is the state that the loop and the requests share. [`startup`]
//! handles OPTIONS and STARTUP, [`tls`] the handshake before them, [`stream`] is the socket,
//! encrypted or not. [`statement`] runs one statement on a [`worker`]. [`transport`] holds all
//! connections of a shard, with the [`memory`] for requests. [`service`] is the interface to the
//! query processor. [`late_refusals`] delays the answers of clients that ignore rate limits, by
//! what [`last_refusals`] remembers.
//!
//! Invariants: a connection stays on one shard. A request that never waits needs no task, channel
//! or timer. Everything that a client makes the server hold is limited: pending requests, unread
//! bytes, memory for requests. This module does not interpret statements.

pub mod accept;
mod arrival;
pub mod client;
mod drive;
mod last_refusals;
mod late_refusals;
pub mod latency;
pub mod memory;
mod saturation;
pub mod service;
pub mod slots;
mod startup;
mod statement;
mod stream;
pub mod tls;
pub mod transport;
mod worker;

#[cfg(test)]
mod bound_tests;
#[cfg(test)]
mod buffered_tests;
#[cfg(test)]
mod large_tests;
#[cfg(test)]
mod segment_tests;
#[cfg(test)]
mod tests;

pub use accept::{ClientPort, Listeners};
pub use client::Connection;
pub use late_refusals::LateLimits;
pub use service::Service;
pub use slots::ConnectionCounts;
pub(crate) use startup::IGNORED_BITS;
pub use transport::{Limits, NodeFacts, Server, Transport};
