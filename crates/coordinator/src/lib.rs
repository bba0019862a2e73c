//! The coordinator: the shard that receives a statement sends requests to the shards that own the
//! data.
//!
//! It knows consistency levels, paging states and timestamps. It parses no CQL and changes no
//! ownership. The control plane (`cluster`) does not depend on it. All requests reach their
//! replicas through `client`, by any transport. Writes that a replica misses are kept as
//! hints.
//!
//! Reading order:
//! - Levels: `consistency`, `nodes`, `level`, `response_tracker`.
//! - Sending: `client`, `peers`, `only_replica`, `replica_failure`, `read_failures`, `error`.
//! - Pages: `read`, `targets`, `resume`, `assembler`, `page_info`, `paging`, `routing`.
//! - Reads of several replicas: `quorum_read`, `quorum_state`, `window`, `speculation`,
//!   `read_times`, `read_trace`, `reduce`, `reconcile`, `repair`.
//! - Rate limits: `rate_limit`, `page_counting`, `protection`, `arrival_reports`.
//! - Writes: `write`, `write_responses`, `replica_writer`, `counter_write`, `fan_out`, `timestamp`.
//! - Hints: [`hints`], `hint_replay`, [`resync`].

mod arrival_reports;
mod assembler;
mod client;
mod coalescing;
mod consistency;
mod counter_write;
mod error;
mod fan_out;
mod hint_replay;
pub mod hints;
mod level;
mod nodes;
mod only_replica;
mod page_counting;
mod page_info;
mod paging;
mod peers;
mod protection;
mod quorum_page;
mod quorum_read;
mod quorum_state;
mod rate_limit;
mod read;
mod read_failures;
mod read_times;
mod read_trace;
mod reconcile;
mod reduce;
mod repair;
mod replica_failure;
mod replica_writer;
mod response_tracker;
mod result_memory;
mod resume;
pub mod resync;
mod routing;
mod speculation;
mod targets;
mod timestamp;
mod window;
mod write;
mod write_responses;

pub use arrival_reports::answer as answer_report;
pub use client::Transport;
pub use consistency::Consistency;
pub use error::CoordinatorError;
pub use nodes::{NodeView, Nodes};
pub use page_counting::Counting;
pub use page_info::{PageBudget, PageInfo, PageStop};
pub use paging::{Binding, LastReplicas, MAX_STATE_BYTES, PagingState, Refused, StatementHash};
pub use peers::{answer, serve_replica};
pub use read::{PageRequest, Query, QueryPage, QueryPartitions};
pub use replica::Mutations;
pub use replica_failure::SendError;
pub use result_memory::{ResultCharge, ResultMemory};
pub use timestamp::TimestampClock;
pub use write::WriteKind;

use cluster::metadata::{Metadata, MetadataService};
use cluster::topology::features;
use hints::{Hints, HintsMetrics};
use model::id::HostId;
use replica::{Context, Replica};
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The deadline, class and consistency level of a request.
#[derive(Clone)]
pub struct RequestOptions {
    /// The class, deadline and cancellation of the request, and the metadata that route it.
    pub context: Context,
    /// The consistency level.
    pub consistency: Consistency,
}

impl RequestOptions {
    /// The same options for a request that is routed by the metadata of this number.
    fn routed_by(&self, number: u64) -> RequestOptions {
        let context = Context { metadata_number: number, ..self.context.clone() };
        RequestOptions { context, consistency: self.consistency }
    }
}

/// Where pages end, and how long their paging states are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageLimits {
    /// `query_page_size_in_bytes`.
    pub bytes: u64,
    /// `query_tombstone_page_limit`.
    pub tombstones: u64,
    /// Whether the operator has set `tombstones`. If so, the limit ends pages, also empty ones. If
    /// not, it only makes a replica pause: the coordinator asks again for the rest.
    pub tombstones_are_set: bool,
    /// `max_memory_for_unlimited_query_hard_limit`, bytes.
    pub unpaged_bytes: u64,
    /// `query_empty_page_time_budget_in_ms`. At most half of the request's remaining time is used.
    pub empty_page_time: Duration,
    /// `query_empty_page_memory_budget`, bytes.
    pub empty_page_bytes: u64,
    /// `paging_state_expiry_in_s`.
    pub state_expiry: Duration,
    /// `paging_key_rotation_period_in_s`.
    pub key_rotation: Duration,
}

impl Default for PageLimits {
    fn default() -> Self {
        PageLimits {
            bytes: 1 << 20,
            tombstones: 10_000,
            tombstones_are_set: false,
            unpaged_bytes: 100 << 20,
            empty_page_time: Duration::from_secs(2),
            empty_page_bytes: 256 << 20,
            state_expiry: Duration::from_secs(24 * 3600),
            key_rotation: Duration::from_secs(24 * 3600),
        }
    }
}

/// Counters of one shard's coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorMetrics {
    /// Pages that clients requested.
    pub reads: u64,
    /// Writes that clients requested.
    pub writes: u64,
    /// Requests sent to another shard of this node.
    pub cross_shard_requests: u64,
    /// Reads that ran out of time.
    pub read_timeouts: u64,
    /// Writes that ran out of time.
    pub write_timeouts: u64,
    /// Reads and writes for which too few replicas were alive.
    pub unavailable: u64,
    /// Paging states that were refused.
    pub refused_states: u64,
    /// Bytes of results that are being collected.
    pub collected_bytes: u64,
    /// Results refused because other results needed the memory.
    pub refused_results: u64,
    /// Requests sent to other nodes.
    pub remote_requests: u64,
    /// Reads whose replicas had different digests.
    pub digest_mismatches: u64,
    /// Read repairs that were sent to replicas.
    pub read_repairs: u64,
    /// Reads that asked one more replica because the first ones were slow.
    pub speculative_reads: u64,
    /// Reads that asked no other replica although one was slow, because the shard was overloaded.
    pub speculation_skipped: u64,
    /// Reads that got the page of a concurrent equal read, without requests to replicas.
    pub coalesced_reads: u64,
    /// Reads refused by rate limits: by this coordinator, and by replicas.
    pub limited_reads: [u64; 2],
    /// Writes refused by rate limits: by this coordinator, and by replicas.
    pub limited_writes: [u64; 2],
    /// Hints of this shard.
    pub hints: HintsMetrics,
}

#[derive(Default)]
struct Counters {
    reads: Cell<u64>,
    writes: Cell<u64>,
    read_timeouts: Cell<u64>,
    write_timeouts: Cell<u64>,
    unavailable: Cell<u64>,
    refused_states: Cell<u64>,
    digest_mismatches: Cell<u64>,
    read_repairs: Cell<u64>,
    speculative_reads: Cell<u64>,
    speculation_skipped: Cell<u64>,
    coalesced_reads: Cell<u64>,
    /// Refused by this coordinator, and by replicas.
    limited_reads: [Cell<u64>; 2],
    /// The same for writes.
    limited_writes: [Cell<u64>; 2],
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// One shard's coordinator.
pub struct Coordinator {
    metadata: Rc<MetadataService>,
    replica: Rc<Replica>,
    clock: TimestampClock,
    limits: Cell<PageLimits>,
    /// The longest answer in bytes: see [`Coordinator::set_largest_answer`].
    largest_answer: Cell<u64>,
    host: HostId,
    client: Rc<client::ReplicaClient>,
    writer: Rc<replica_writer::ReplicaWriter>,
    read_times: read_times::ReadTimes,
    coalescing: coalescing::Coalescing,
    peers: RefCell<Option<Rc<peers::Peers>>>,
    counters: Counters,
    results: Rc<ResultMemory>,
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
        let limits = Cell::new(limits);
        let client = client::ReplicaClient::new(host, replica.clone(), metadata.shards());
        // Alone until it is connected to others.
        client.set_nodes(Nodes::new(host, &[peers::view_of(metadata.info())]));
        let writer = replica_writer::ReplicaWriter::new(client.clone());
        let read_times = read_times::ReadTimes::default();
        let followed = Rc::downgrade(&replica);
        metadata.on_topology(move |topology| {
            if let Some(replica) = followed.upgrade() {
                replica.set_fence(topology.fence());
                replica.set_reporting_coordinators(features::reporting_shards(topology));
                replica.set_protection_understood(topology.has_feature(features::ARRIVAL_REPORTS));
            }
        });
        Rc::new(Coordinator {
            metadata,
            replica,
            clock,
            limits,
            largest_answer: Cell::new(u64::MAX),
            host,
            client,
            writer,
            read_times,
            coalescing: coalescing::Coalescing::default(),
            peers: RefCell::default(),
            counters: Counters::default(),
            results: ResultMemory::new(),
        })
    }

    /// The metadata of this shard, of all versions.
    pub fn metadata_service(&self) -> &Rc<MetadataService> {
        &self.metadata
    }

    /// Sets the transport that carries requests to other nodes.
    pub fn set_transport(&self, transport: Rc<dyn Transport>) {
        self.client.set_transport(transport);
    }

    /// Replaces the view of the nodes: their addresses, and which of them are up.
    pub fn set_nodes(&self, nodes: Nodes) {
        self.client.set_nodes(nodes);
    }

    /// This shard's current view of the nodes.
    pub fn nodes(&self) -> Rc<Nodes> {
        self.nodes_by(&self.metadata())
    }

    /// Sets the store for hints. Without one, no hints are kept.
    pub fn set_hints(&self, hints: Rc<Hints>) {
        self.writer.set_hints(hints);
    }

    /// The store for hints, if one is set.
    pub fn hints(&self) -> Option<Rc<Hints>> {
        self.writer.hints()
    }

    /// The newest metadata.
    pub fn metadata(&self) -> Rc<Metadata> {
        self.metadata.current()
    }

    /// Waits for metadata with a number above `number`, because a replica refused a request that
    /// was routed by `number`. `required`: the responses that the level needs, for the error.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Timeout`] when the deadline passes first. `timeouts` counts it.
    async fn wait_for_newer(
        &self,
        number: u64,
        required: u32,
        options: &RequestOptions,
        timeouts: &Cell<u64>,
    ) -> Result<(), CoordinatorError> {
        options.context.trace("The metadata is outdated: waiting for a newer version");
        if self.metadata.wait_for_number(number + 1, options.context.deadline).await {
            return Ok(());
        }
        count(timeouts);
        let consistency = options.consistency;
        Err(CoordinatorError::Timeout { consistency, required, received: 0, data_present: false })
    }

    /// A timestamp for a write: microseconds, increasing on this shard.
    pub fn timestamp(&self) -> i64 {
        self.clock.next()
    }

    /// The current page limits.
    pub fn page_limits(&self) -> PageLimits {
        self.limits.get()
    }

    /// Changes the limits for all pages from now on.
    pub fn set_page_limits(&self, limits: PageLimits) {
        let most = self.largest_answer.get();
        let PageLimits { bytes, unpaged_bytes, empty_page_bytes, .. } = limits;
        self.limits.set(PageLimits {
            bytes: bytes.min(most),
            unpaged_bytes: unpaged_bytes.min(most),
            empty_page_bytes: empty_page_bytes.min(most),
            ..limits
        });
    }

    /// Sets the longest answer that this shard can send to a client, in bytes. Results end there,
    /// whatever the page limits are, because a longer one could not be sent. Unlimited until it is
    /// set.
    pub fn set_largest_answer(&self, bytes: usize) {
        self.largest_answer.set(bytes as u64);
        self.set_page_limits(self.limits.get());
    }

    /// The memory of results that are being collected on this shard.
    pub fn results(&self) -> &Rc<ResultMemory> {
        &self.results
    }

    /// Sets the bytes that results may have while they are collected. Unlimited until it is set.
    pub fn set_result_memory(&self, bytes: usize) {
        self.results.set_most(bytes);
    }

    /// This shard's replica.
    pub fn replica(&self) -> &Rc<Replica> {
        &self.replica
    }

    /// The counters so far.
    pub fn metrics(&self) -> CoordinatorMetrics {
        CoordinatorMetrics {
            reads: self.counters.reads.get(),
            writes: self.counters.writes.get(),
            cross_shard_requests: self.client.to_shards.get(),
            read_timeouts: self.counters.read_timeouts.get(),
            write_timeouts: self.counters.write_timeouts.get(),
            unavailable: self.counters.unavailable.get(),
            refused_states: self.counters.refused_states.get(),
            collected_bytes: self.results.used() as u64,
            refused_results: self.results.refused(),
            remote_requests: self.client.to_nodes.get(),
            digest_mismatches: self.counters.digest_mismatches.get(),
            read_repairs: self.counters.read_repairs.get(),
            speculative_reads: self.counters.speculative_reads.get(),
            speculation_skipped: self.counters.speculation_skipped.get(),
            coalesced_reads: self.counters.coalesced_reads.get(),
            limited_reads: self.counters.limited_reads.each_ref().map(Cell::get),
            limited_writes: self.counters.limited_writes.each_ref().map(Cell::get),
            hints: self.writer.hints().map(|hints| hints.metrics()).unwrap_or_default(),
        }
    }
}
