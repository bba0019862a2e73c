//! Connections: from a socket to the language and back.
//!
//! In reading order: [`accept`] gives each socket to a shard, within the bound of [`seats`];
//! [`drive`] is the loop of one connection (read, start each request, write all answers of a wake
//! at once); [`client`] is what the loop and the requests share; [`startup`] speaks with a client
//! before its first statement, and [`tls`] even before that; [`stream`] is its socket, encrypted or
//! not; [`statement`] runs one statement, on a [`worker`]; [`transport`] is a shard's view of all
//! of its connections, with its [`memory`] for requests; [`service`] is the border to the language.
//!
//! Invariants: a connection lives and dies on one shard; a request that never waits costs no task, no channel and no
//! timer; what a client makes the server hold is bounded (requests in flight, bytes not read, memory for requests).
//! Nothing here looks into a statement.

pub mod accept;
pub mod client;
mod drive;
pub mod latency;
pub mod memory;
pub mod seats;
pub mod service;
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
pub use seats::Spread;
pub use service::Service;
pub(crate) use startup::IGNORED_BITS;
pub use transport::{Limits, NodeFacts, Server, Transport};
