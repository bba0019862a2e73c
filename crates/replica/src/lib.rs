//! The replica: serves bounded, fair reads and writes of the data that one shard's engine holds.
//!
//! A [`request::ReplicaRequest`] is the only way to ask a shard for data, and [`Replica::perform`]
//! is the only entry: a list of stages. A request has a wire form ([`wire`]) for other shards and
//! nodes.
//!
//! A request of a client is counted against rate limits ([`rate_limit`], [`limiter`]), and perhaps
//! sampled to find hot partitions ([`hot`]). Coordinators report their request rates to owners
//! ([`arrivals`], [`decider`]). Owners report to each other the bytes that they read.
//!
//! A read is admitted ([`permit`]). It streams merged fragments from the engine and turns them into
//! a page of rows ([`page`]). The reader is kept for the next page ([`querier`]).
//!
//! The replica does not depend on the network, on other replicas or on consistency levels.
//!
//! Reading order: `request`, `replica`, `perform`, `rate_limit`, `rate_limiter`, `decider`,
//! `arrivals`, `spent`, `limiter`, `excess`, `limited_partitions`, `hot_requests`, `hot`, `output`,
//! `reduce`, `page`, `digest`, `permit`, `querier`, `read`, `fragments`, `write`, `large_data`,
//! `lock`, `counter`, `shard_moves`, `wire`, `trace`.

pub mod arrivals;
mod counter;
pub mod decider;
pub mod digest;
pub mod error;
mod excess;
pub mod fragments;
pub mod hot;
mod hot_requests;
pub mod large_data;
mod limited_partitions;
pub mod limiter;
mod lock;
pub mod output;
pub mod page;
mod perform;
pub mod permit;
pub mod querier;
pub mod rate_limit;
mod rate_limiter;
mod read;
pub mod reduce;
mod replica;
pub mod request;
mod shard_moves;
mod spent;
pub mod trace;
pub mod wire;
mod write;

pub use digest::Digest;
pub use error::{LimitedBy, Overload, RateLimited, ReplicaError, Stale};
pub use excess::Excess;
pub use fragments::FragmentPage;
pub use hot::{HotPartition, HotSettings, PartitionId, ProtectionMode, TabletLoad, TopPartitions};
pub use large_data::LargeKinds;
pub use limiter::LimitKind;
pub use output::{Output, OutputColumn};
pub use page::{Page, PageEnd, Position, Region};
pub use rate_limiter::RateLimitMetrics;
pub use reduce::Reduction;
pub use replica::{Replica, ReplicaConfig, ReplicaMetrics};
pub use request::{
    Class, Context, KeyedMutation, Limits, Mutations, RateLimitMode, ReadCommand, ReplicaRequest, ReplicaResponse,
};
pub use trace::Trace;
pub use wire::command::region_from_code;
