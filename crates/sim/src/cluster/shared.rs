//! The state that the nodes, their clients and the driver of a simulated cluster share. It is part
//! of the test: no fault of a node loses it.

use super::client::Failed;
use super::counters::Counters;
use super::history::History;
use super::membership::MemberChanges;
use super::pages::Pages;
use super::rate_limits::{LimitedTable, RateLimits};
use super::schema_oracle::SchemaOracle;
use super::truncations::Truncations;
use cql::api::Consistency;
use engine::commitlog::SyncMode;
use model::id::HostId;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use uuid::Uuid;

/// After an overload, a shard that runs refuses nothing from then on.
const KEEPS_UP: Duration = Duration::from_secs(1);

/// A deliberate mistake, which the checkers must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlantedBug {
    /// No mistake.
    #[default]
    None,
    /// A write at QUORUM is acknowledged after one replica.
    WritesAtOne,
    /// A read at QUORUM asks one replica.
    ReadsAtOne,
    /// Concurrent equal reads get the result of a read that may have been sent before they began.
    FollowsSentReads,
    /// No hints are kept for a node that is down.
    NoHints,
    /// A write is acknowledged in batch mode before it is on the disk.
    LazyLog,
    /// A write at EACH_QUORUM is acknowledged after one datacenter.
    OneDatacenter,
    /// Values that should have a TTL are written without.
    NoExpiry,
    /// A TRUNCATE is acknowledged and not executed.
    NoTruncate,
    /// A tablet moves without its data.
    NoCopy,
    /// A counter update that failed is sent again, as if it had not been applied.
    CountsAgain,
    /// No coordinator reports its rates to owners.
    NoArrivalReports,
    /// A node does the writes that its coordinator refuses by a rate limit.
    RefusedIsDone,
    /// Node 0 refuses nothing by a rate limit.
    OneUnlimited,
    /// A node counts under one id for ever, whatever it has lost. Its log is as in
    /// [`PlantedBug::LazyLog`].
    CountsFromLoss,
}

impl PlantedBug {
    /// The level of a write that the oracle records at `level`.
    pub fn write_level(self, level: Consistency) -> Consistency {
        match (self, level) {
            (PlantedBug::WritesAtOne, _) => Consistency::One,
            (PlantedBug::OneDatacenter, Consistency::EachQuorum) => Consistency::LocalQuorum,
            (_, level) => level,
        }
    }

    /// The level of a read that the oracle checks at `level`.
    pub fn read_level(self, level: Consistency) -> Consistency {
        if self == PlantedBug::ReadsAtOne { Consistency::One } else { level }
    }
}

/// The configuration of a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shards of each node.
    pub shards: Vec<usize>,
    /// When writes are acknowledged: the sync mode of the commitlog.
    pub sync: SyncMode,
    /// Replicas of each tablet at the beginning. With several datacenters, every node has one.
    pub copies: usize,
    /// The number of datacenters. Nodes are assigned to them in turn.
    pub datacenters: usize,
    /// Whether some values have a TTL.
    pub expiring: bool,
    /// Whether a table is truncated repeatedly.
    pub truncating: bool,
    /// Whether tablets move between nodes.
    pub moving: bool,
    /// Whether the replication of the keyspace is altered while tablets move.
    pub replicating: bool,
    /// Whether nodes leave, are removed or replaced, and come back as new nodes. Needs `moving`.
    pub member_changes: bool,
    /// Whether nodes have more shards after some restarts.
    pub growing: bool,
    /// Whether queries are paged over clients of all nodes.
    pub paging: bool,
    /// The tables with partitions that are used far beyond their rate limits.
    pub limited: &'static [LimitedTable],
    /// Clients of each shard.
    pub clients: usize,
    /// The pause of a client between two requests is below this, in milliseconds.
    pub pause_millis: u64,
    /// Whether clients only update counters, and read nothing.
    pub counting: bool,
    /// Whether tables and columns are created and dropped.
    pub schema_changes: bool,
    /// The deliberate mistake.
    pub planted_bug: PlantedBug,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            shards: vec![2, 2, 2],
            sync: SyncMode::Periodic { period: Duration::from_millis(500) },
            copies: 3,
            datacenters: 1,
            expiring: false,
            truncating: false,
            moving: false,
            replicating: false,
            member_changes: false,
            growing: false,
            paging: false,
            limited: &[],
            clients: 1,
            pause_millis: 60,
            counting: false,
            schema_changes: true,
            planted_bug: PlantedBug::None,
        }
    }
}

impl Plan {
    /// Whether there are tables with rate limits.
    pub fn is_limiting(&self) -> bool {
        !self.limited.is_empty()
    }

    /// The datacenter of a node.
    pub fn datacenter(&self, node: usize) -> usize {
        node % self.datacenters
    }

    /// The datacenter of a node, if there are several.
    pub fn own_datacenter(&self, node: usize) -> Option<usize> {
        (self.datacenters > 1).then(|| self.datacenter(node))
    }
}

/// A command of the driver to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read everything at ALL, so that read repair makes the replicas equal.
    Repair,
    /// Read everything at QUORUM.
    Read,
    /// Replay hints, and report for how many nodes some are left.
    DeliverHints,
    /// Report the metadata, the tables and the rows.
    Report,
    /// Report what would have been refused in mode `observe`.
    ReportObserved,
}

/// The answer of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The metadata of each shard: its number and version.
    pub metadata: Vec<(u64, Uuid)>,
    /// The tables whose names begin with `u`.
    pub tables: Vec<String>,
    /// The number of replicas that the keyspace asks for.
    pub asked: usize,
    /// The rows of its tablets by table and tablet, as bytes.
    pub copies: BTreeMap<(String, u32), Vec<u8>>,
    /// For how many nodes hints are left, summed over the shards.
    pub hints: usize,
    /// Reads and writes that would have been refused in mode `observe`, summed over the shards.
    pub observed: [u64; 2],
}

/// A node, as its shards and the driver see it.
#[derive(Default)]
pub struct NodeState {
    ready: Cell<bool>,
    stopping: Cell<bool>,
    /// All layers have stopped, or the start failed.
    pub over: Cell<bool>,
    /// All layers have started.
    pub up: Cell<bool>,
    /// The node was a voter after its start.
    pub voted: Cell<bool>,
    /// The node sees all others up.
    pub sees_all: Cell<bool>,
    /// The node knows of moving tablets.
    pub moving: Cell<bool>,
    /// The host id that the data on the disk belongs to, once the node has started with it.
    pub host: Cell<Option<HostId>>,
    /// The node is no member any more: its disk is erased, and it starts as a new node.
    pub gone: Cell<bool>,
    /// The lost node that the new node replaces.
    pub replaces: Cell<Option<HostId>>,
    /// The members that join, leave, were removed, or are too many, as the node knows them.
    pub unsettled: RefCell<Option<String>>,
    /// Requests of clients in progress.
    pub requests: Cell<u32>,
    /// The node's shards behave as overloaded ones.
    pub seems_overloaded: Cell<bool>,
    /// Statements that failed on the node.
    pub failures: Cell<u64>,
    pub(super) command: Cell<Option<Command>>,
    pub(super) answer: RefCell<Option<Result<Report, String>>>,
}

impl NodeState {
    /// The node starts: resets its state.
    pub fn starts(&self) {
        self.ready.set(false);
        self.stopping.set(false);
        self.over.set(false);
        self.up.set(false);
        self.voted.set(false);
        self.sees_all.set(false);
        self.unsettled.replace(Some("it starts".into()));
        self.requests.set(0);
        self.command.set(None);
        self.answer.take();
    }

    /// Sets whether clients may begin: the tables exist, and the node does not leave.
    pub fn set_ready(&self, ready: bool) {
        self.ready.set(ready);
    }

    /// Whether clients may begin.
    pub fn is_ready(&self) -> bool {
        self.ready.get()
    }

    /// Asks the node to stop.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    /// Whether the node must stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }
}

/// The state that nodes, clients and driver share.
pub struct Shared {
    /// The configuration of the cluster.
    pub plan: Plan,
    /// The internode addresses of the nodes.
    pub addresses: Vec<SocketAddr>,
    /// The nodes.
    pub nodes: Vec<NodeState>,
    /// The oracle of the rows.
    pub history: RefCell<History>,
    /// The oracle of the counters.
    pub counters: RefCell<Counters>,
    /// The oracle of the table that is truncated.
    pub truncations: RefCell<Truncations>,
    /// The oracles of the tables with rate limits.
    pub limits: Vec<RefCell<RateLimits>>,
    /// The oracle of paged queries.
    pub pages: RefCell<Pages>,
    /// The oracle of the tables that clients create and drop.
    pub schema: RefCell<SchemaOracle>,
    /// The version of the metadata under each number, as the first node reported it.
    decided: RefCell<BTreeMap<u64, Uuid>>,
    /// Broken promises.
    broken: RefCell<Vec<String>>,
    /// Tablets whose data was copied to another node.
    pub copied: Cell<u64>,
    /// Failed statements, counted by their shortened errors.
    pub failures: RefCell<BTreeMap<String, u64>>,
    /// From when on no shard is overloaded.
    keeps_up_from: Cell<Duration>,
    /// Operations of a hot partition that an overloaded shard refused.
    pub protected: Cell<u64>,
    /// The most tablets that the shards of a node handed over to each other between two starts.
    pub handed_over: Cell<u64>,
    /// The most reads that a shard coalesced between two starts of its node.
    pub coalesced: Cell<u64>,
    /// The node that is removed, or whose disk was lost, until others have its replicas.
    pub lost: Cell<Option<HostId>>,
    /// Whether nodes may begin to leave, or be removed.
    pub members_change: Cell<bool>,
    /// How often the members changed.
    pub member_changes: Cell<MemberChanges>,
    working: Cell<bool>,
    elapsed: Cell<Duration>,
    /// Failures of statements that began earlier are not counted.
    failures_from: Cell<Duration>,
    telling: bool,
}

impl Shared {
    /// The state for a cluster with these addresses.
    pub fn new(plan: Plan, addresses: Vec<SocketAddr>) -> Rc<Shared> {
        let shards = plan.shards.iter().sum();
        let limits = plan.limited.iter().map(|table| RefCell::new(RateLimits::new(table, shards))).collect();
        Rc::new(Shared {
            nodes: addresses.iter().map(|_| NodeState::default()).collect(),
            limits,
            plan,
            addresses,
            history: RefCell::default(),
            counters: RefCell::default(),
            truncations: RefCell::default(),
            pages: RefCell::default(),
            schema: RefCell::default(),
            decided: RefCell::default(),
            broken: RefCell::default(),
            copied: Cell::new(0),
            failures: RefCell::default(),
            keeps_up_from: Cell::default(),
            protected: Cell::new(0),
            handed_over: Cell::new(0),
            coalesced: Cell::new(0),
            lost: Cell::new(None),
            members_change: Cell::new(true),
            member_changes: Cell::default(),
            working: Cell::new(false),
            elapsed: Cell::default(),
            failures_from: Cell::default(),
            telling: std::env::var_os("TELL").is_some(),
        })
    }

    /// Lets clients work, or pauses them.
    pub fn set_working(&self, working: bool) {
        self.working.set(working);
    }

    /// Whether clients work.
    pub fn is_working(&self) -> bool {
        self.working.get()
    }

    /// Overloads all shards, or ends that.
    pub fn set_overloaded(&self, overloaded: bool) {
        self.keeps_up_from.set(if overloaded { Duration::MAX } else { self.elapsed() + KEEPS_UP });
    }

    /// Whether all shards are overloaded.
    pub fn is_overloaded(&self) -> bool {
        self.keeps_up_from.get() == Duration::MAX
    }

    /// Whether no shard is overloaded, nor was lately. A node that was paused at the end of the
    /// overload notices it later.
    pub fn keeps_up(&self) -> bool {
        self.keeps_up_from.get() <= self.elapsed() && !self.nodes.iter().any(|node| node.seems_overloaded.get())
    }

    /// Sets the time since the start of the scenario, by the driver's clock. No fault changes it.
    pub fn set_elapsed(&self, elapsed: Duration) {
        self.elapsed.set(elapsed);
    }

    /// The time since the start of the scenario.
    pub fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    /// The time since the start of the scenario, in seconds.
    pub fn seconds(&self) -> i64 {
        self.elapsed().as_secs() as i64
    }

    /// Records a broken promise.
    pub fn broken(&self, why: String) {
        rt::sim::trace(&why);
        self.broken.borrow_mut().push(why);
    }

    /// The first promise that was broken.
    pub fn first_broken(&self) -> Option<String> {
        self.broken.borrow().first().cloned()
    }

    /// Drops the broken promises, which the scenario expects.
    pub fn forgive(&self) {
        self.broken.borrow_mut().clear();
    }

    /// Counts only failures of statements that begin from now on.
    pub fn count_failures_from_now(&self) {
        self.failures.borrow_mut().clear();
        self.failures_from.set(self.elapsed());
    }

    /// Records that a statement, which began at `began`, failed on a node. Requests that take too
    /// long break a promise.
    pub fn failed(&self, node: usize, began: Duration, failed: Failed) {
        self.nodes[node].failures.set(self.nodes[node].failures.get() + 1);
        if let Failed::Late(why) | Failed::Endless(why) = &failed {
            self.broken(why.clone());
        }
        if began < self.failures_from.get() {
            return;
        }
        let why = failed.why();
        let kind: String =
            why.split(": ").last().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).take(80).collect();
        *self.failures.borrow_mut().entry(kind).or_default() += 1;
    }

    /// The checker `raft_safety`: records which version of the metadata a node has under a number.
    pub fn knows(&self, node: usize, number: u64, version: Uuid) {
        let known = *self.decided.borrow_mut().entry(number).or_insert(version);
        if known != version {
            self.broken(format!(
                "raft_safety is broken: node {node} has metadata {number} as {version}, others as {known}"
            ));
        }
    }

    /// Prints a step of the scenario to stderr, if the environment has `TELL=1`.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.telling {
            eprintln!("{} {}", rt::time::wall_micros() % 1_000_000_000_000 / 1000, what());
        }
    }
}
