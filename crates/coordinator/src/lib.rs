//! The coordinator: the shard that received a request asks the shards that own the data.
//!
//! It knows consistency levels, paging states and timestamps. It parses no CQL and changes no
//! ownership, and the control plane (`cluster`) does not know it. All requests reach their replicas
//! through `client`, whatever the distance. What replicas miss is kept as hints.
//!
//! Reading order: `consistency`, `nodes`, `level`, `tally` (how many replicas must answer, and how
//! many have); `client`, `peers`, `miss`, `misses`, `error`; `read`, `targets`, `resume`,
//! `assembler`, `page_info`, `paging`, `routing` (pages: what to ask for); `gather`, `window`,
//! `quorum`, `speculation`, `read_times`, `reduce` (whom to ask); `reconcile`, `repair`; `write`,
//! `round`, `carrier`, `counting`, `spread`, `timestamp`; [`hints`], `deliver`, [`resync`]; `steps`.

mod assembler;
mod carrier;
mod client;
mod consistency;
mod counting;
mod deliver;
mod error;
mod gather;
pub mod hints;
mod level;
mod miss;
mod misses;
mod nodes;
mod page_info;
mod paging;
mod peers;
mod quorum;
mod read;
mod read_times;
mod reconcile;
mod reduce;
mod repair;
mod resume;
pub mod resync;
mod round;
mod routing;
mod speculation;
mod spread;
mod steps;
mod tally;
mod targets;
mod timestamp;
mod window;
mod write;

pub use client::Transport;
pub use consistency::Consistency;
pub use error::CoordinatorError;
pub use miss::Unreached;
pub use nodes::{NodeView, Nodes};
pub use page_info::{PageBudget, PageInfo, PageStop};
pub use paging::{Binding, LastReplicas, MAX_STATE_BYTES, PagingState, Refused, StatementHash};
pub use peers::{answer, serve_replica};
pub use read::{PageRequest, Partitions, Query, QueryPage};
pub use replica::Mutations;
pub use timestamp::TimestampClock;
pub use write::WriteKind;

use cluster::metadata::{Metadata, MetadataService};
use hints::{Hints, HintsMetrics};
use model::id::HostId;
use replica::{Context, Replica};
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How a request is to be carried out.
#[derive(Clone)]
pub struct RequestOptions {
    /// Whose it is and until when.
    pub context: Context,
    /// How many replicas must answer.
    pub consistency: Consistency,
}

impl RequestOptions {
    /// The same for a request that is routed by the metadata of this number.
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
    /// Whether the operator has set that limit: then it cuts pages, also empty ones. By default it is only where a replica pauses.
    pub tombstones_are_set: bool,
    /// `max_memory_for_unlimited_query_hard_limit`, bytes.
    pub unpaged_bytes: u64,
    /// `query_empty_page_time_budget_in_ms`; half of the time that the request has left, if that is less.
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
    /// Paging states that were refused.
    pub refused_states: u64,
    /// Requests to other nodes.
    pub remote_requests: u64,
    /// Reads whose replicas did not agree.
    pub digest_mismatches: u64,
    /// Replicas that a read gave what they lacked.
    pub read_repairs: u64,
    /// Reads for which one replica more was asked, because those asked were slow.
    pub speculative_reads: u64,
    /// What is kept for replicas that missed it.
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
    host: HostId,
    client: Rc<client::ReplicaClient>,
    carrier: Rc<carrier::Carrier>,
    read_times: read_times::ReadTimes,
    peers: RefCell<Option<Rc<peers::Peers>>>,
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
        let limits = Cell::new(limits);
        let client = client::ReplicaClient::new(host, replica.clone());
        let carrier = carrier::Carrier::new(client.clone());
        let read_times = read_times::ReadTimes::default();
        let fenced = Rc::downgrade(&replica);
        metadata.on_topology(move |topology| {
            if let Some(replica) = fenced.upgrade() {
                replica.set_fence(topology.fence());
            }
        });
        let (peers, counters) = (RefCell::default(), Counters::default());
        Rc::new(Coordinator { metadata, replica, clock, limits, host, client, carrier, read_times, peers, counters })
    }

    /// Gives it the way to other nodes.
    pub fn set_transport(&self, transport: Rc<dyn Transport>) {
        self.client.set_transport(transport);
    }

    /// Says where the nodes are now, and which of them live.
    pub fn set_nodes(&self, nodes: Nodes) {
        self.client.set_nodes(nodes);
    }

    /// The nodes as it sees them.
    pub fn nodes(&self) -> Rc<Nodes> {
        self.nodes_by(&self.metadata())
    }

    /// Has it keep what replicas miss.
    pub fn set_hints(&self, hints: Rc<Hints>) {
        self.carrier.set_hints(hints);
    }

    /// What it keeps for replicas that missed it.
    pub fn hints(&self) -> Option<Rc<Hints>> {
        self.carrier.hints()
    }

    /// The newest metadata.
    pub fn metadata(&self) -> Rc<Metadata> {
        self.metadata.current()
    }

    /// Waits for metadata newer than those of a number, by which a replica would not be asked any more; an error when the time is up.
    async fn newer_than(&self, number: u64, options: &RequestOptions) -> Result<(), CoordinatorError> {
        options.context.trace("The metadata are outdated: waiting for newer ones");
        if self.metadata.wait_for_number(number + 1, options.context.deadline).await {
            return Ok(());
        }
        let consistency = options.consistency;
        Err(CoordinatorError::Timeout { consistency, required: 1, received: 0, data_present: false })
    }

    /// A timestamp for a write: microseconds, increasing on this shard.
    pub fn timestamp(&self) -> i64 {
        self.clock.next()
    }

    /// Where pages end now.
    pub fn page_limits(&self) -> PageLimits {
        self.limits.get()
    }

    /// Ends pages elsewhere from now on.
    pub fn set_page_limits(&self, limits: PageLimits) {
        self.limits.set(limits);
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
            cross_shard_requests: self.client.to_shards.get(),
            read_timeouts: self.counters.read_timeouts.get(),
            write_timeouts: self.counters.write_timeouts.get(),
            unavailable: self.counters.unavailable.get(),
            refused_states: self.counters.refused_states.get(),
            remote_requests: self.client.to_nodes.get(),
            digest_mismatches: self.counters.digest_mismatches.get(),
            read_repairs: self.counters.read_repairs.get(),
            speculative_reads: self.counters.speculative_reads.get(),
            hints: self.carrier.hints().map(|hints| hints.metrics()).unwrap_or_default(),
        }
    }
}
