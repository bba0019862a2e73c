//! One shard's answers: it serves reads and writes of the data its engine holds, fairly and within bounds.
//!
//! The only way to ask a shard for data is a [`request::Request`]; it has a wire form ([`wire`]) for the distances beyond this
//! shard. A read is admitted ([`permit`]), streams merged fragments out of the engine and turns them into a page of rows
//! ([`page`]); the reader is kept for the next page ([`querier`]). The replica knows no network, no other replica, no consistency
//! level.
//! Reading order: request, output, reduce, page, digest, permit, querier, read, fragments, write, large_data, counter, wire, trace.

mod counter;
pub mod digest;
pub mod error;
pub mod fragments;
pub mod large_data;
pub mod output;
pub mod page;
pub mod permit;
pub mod querier;
pub mod read;
pub mod reduce;
pub mod request;
pub mod trace;
pub mod wire;
pub mod write;

pub use digest::Digest;
pub use error::ReplicaError;
pub use fragments::FragmentPage;
pub use large_data::LargeKinds;
pub use output::{Output, OutputColumn};
pub use page::{Page, PageEnd, Position, Region};
pub use read::{Replica, ReplicaConfig, ReplicaMetrics};
pub use reduce::Reduction;
pub use request::{Class, Context, Limits, ReadCommand};
pub use trace::Trace;
pub use wire::command::region_from_code;
