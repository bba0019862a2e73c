//! The coordinator: the shard that received a request asks the shards that own the data.
//!
//! It knows consistency levels, paging states and timestamps. It parses no CQL, and the control plane does not know it.

mod call;
mod consistency;
mod error;
mod paging;
mod read;
mod timestamp;
mod write;

pub use consistency::Consistency;
pub use error::CoordinatorError;
pub use paging::PagingState;
pub use read::{PageRequest, Partitions, Query, QueryPage};
pub use timestamp::TimestampClock;
pub use write::{Mutations, WriteKind};

use crate::metadata::{Metadata, MetadataService, Table};
use crate::tablets::TabletReplica;
use bytes::Bytes;
use model::id::HostId;
use model::token::Token;
use replica::{Context, Replica};
use std::cell::Cell;
use std::rc::Rc;

/// How a request is to be carried out.
#[derive(Clone)]
pub struct RequestOptions {
    /// Whose it is and until when.
    pub context: Context,
    /// How many replicas must answer.
    pub consistency: Consistency,
}

/// Where pages end; see paging.md section 3.
#[derive(Clone, Debug)]
pub struct PageLimits {
    /// `query_page_size_in_bytes`.
    pub bytes: u64,
    /// `query_tombstone_page_limit`.
    pub tombstones: u64,
    /// `max_memory_for_unlimited_query_hard_limit`, bytes.
    pub unpaged_bytes: u64,
}

impl Default for PageLimits {
    fn default() -> Self {
        PageLimits { bytes: 1 << 20, tombstones: 10_000, unpaged_bytes: 100 << 20 }
    }
}

/// What a coordinator has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorMetrics {
    /// Pages asked for by clients.
    pub reads: u64,
    /// Writes asked for by clients.
    pub writes: u64,
    /// Requests that had to go to another shard of this node.
    pub cross_shard_requests: u64,
    /// Reads that ran out of time.
    pub read_timeouts: u64,
    /// Writes that ran out of time.
    pub write_timeouts: u64,
    /// Reads and writes for which too few replicas were alive.
    pub unavailable: u64,
}

#[derive(Default)]
struct Counters {
    reads: Cell<u64>,
    writes: Cell<u64>,
    cross_shard: Cell<u64>,
    read_timeouts: Cell<u64>,
    write_timeouts: Cell<u64>,
    unavailable: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// One shard's coordinator.
pub struct Coordinator {
    metadata: Rc<MetadataService>,
    replica: Rc<Replica>,
    clock: TimestampClock,
    limits: PageLimits,
    host: HostId,
    counters: Counters,
}

impl Coordinator {
    /// The coordinator of this shard.
    pub fn new(
        metadata: Rc<MetadataService>,
        replica: Rc<Replica>,
        clock: TimestampClock,
        limits: PageLimits,
    ) -> Rc<Self> {
        let host = metadata.info().host_id;
        Rc::new(Coordinator { metadata, replica, clock, limits, host, counters: Counters::default() })
    }

    /// The newest metadata.
    pub fn metadata(&self) -> Rc<Metadata> {
        self.metadata.current()
    }

    /// A timestamp for a write: microseconds, increasing on this shard.
    pub fn timestamp(&self) -> i64 {
        self.clock.next()
    }

    /// This shard's replica.
    pub fn replica(&self) -> &Rc<Replica> {
        &self.replica
    }

    /// What it has done so far.
    pub fn metrics(&self) -> CoordinatorMetrics {
        CoordinatorMetrics {
            reads: self.counters.reads.get(),
            writes: self.counters.writes.get(),
            cross_shard_requests: self.counters.cross_shard.get(),
            read_timeouts: self.counters.read_timeouts.get(),
            write_timeouts: self.counters.write_timeouts.get(),
            unavailable: self.counters.unavailable.get(),
        }
    }

    /// If this shard does not own the token: the tablet that does, as the value of the custom payload `tablets-routing-v1`
    /// (protocol-extensions.md section 7).
    pub fn tablet_hint(&self, table: &Table, token: Token) -> Option<Bytes> {
        let tablet = table.tablets.tablet_of(token);
        let replicas = table.tablets.replicas(tablet);
        let here = TabletReplica { host: self.host, shard: rt::shard::this().0 };
        if replicas.is_empty() || replicas.contains(&here) {
            return None;
        }
        let mut list = (replicas.len() as i32).to_be_bytes().to_vec();
        for replica in replicas {
            let mut pair = Vec::with_capacity(28);
            push_value(&mut pair, replica.host.as_bytes());
            push_value(&mut pair, &(replica.shard as i32).to_be_bytes());
            push_value(&mut list, &pair);
        }
        let mut out = Vec::with_capacity(64);
        push_value(&mut out, &table.tablets.first_token(tablet).0.to_be_bytes());
        push_value(&mut out, &table.tablets.last_token(tablet).0.to_be_bytes());
        push_value(&mut out, &list);
        Some(out.into())
    }
}

fn push_value(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}
