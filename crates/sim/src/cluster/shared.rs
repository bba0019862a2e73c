//! What the nodes, their clients and the driver of a simulated cluster share: the test's memory, not the nodes'.

use super::counters::Counters;
use super::history::History;
use super::pages::Pages;
use super::schema_book::SchemaBook;
use super::truncations::Truncations;
use cql::api::Consistency;
use engine::commitlog::SyncMode;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use uuid::Uuid;

/// A mistake on purpose, which the checkers must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Canary {
    /// None.
    #[default]
    None,
    /// A write at QUORUM is acknowledged by one replica.
    WritesAtOne,
    /// A read at QUORUM asks one replica.
    ReadsAtOne,
    /// What a node that is down misses is not kept for it.
    NoHints,
    /// What is acknowledged in batch mode is not on the disk yet.
    LazyLog,
    /// A write at EACH_QUORUM is acknowledged by one datacenter.
    OneDatacenter,
    /// What has a time to live is written without.
    NoExpiry,
    /// A TRUNCATE is acknowledged and not done.
    NoTruncate,
    /// A tablet moves without its data.
    NoCopy,
    /// What was not acknowledged of counters is counted again, as if it had not been done.
    CountsAgain,
}

impl Canary {
    /// The level at which a write is carried out that is booked at `level`.
    pub fn write_level(self, level: Consistency) -> Consistency {
        match (self, level) {
            (Canary::WritesAtOne, _) => Consistency::One,
            (Canary::OneDatacenter, Consistency::EachQuorum) => Consistency::LocalQuorum,
            (_, level) => level,
        }
    }

    /// The level at which a read is carried out that is judged at `level`.
    pub fn read_level(self, level: Consistency) -> Consistency {
        if self == Canary::ReadsAtOne { Consistency::One } else { level }
    }
}

/// What a cluster is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shards of each node.
    pub shards: Vec<usize>,
    /// When writes are acknowledged.
    pub sync: SyncMode,
    /// Copies of each tablet; every node has one where there are several datacenters.
    pub copies: usize,
    /// How many datacenters the nodes are in: the first has one node more than the others, if they are odd.
    pub datacenters: usize,
    /// Whether some values have a time to live.
    pub expiring: bool,
    /// Whether a table is emptied now and then.
    pub truncating: bool,
    /// Whether tablets move between nodes.
    pub moving: bool,
    /// Whether queries go from page to page over all nodes.
    pub paging: bool,
    /// Clients of each shard.
    pub clients: usize,
    /// A client pauses for less than this between two requests, in milliseconds.
    pub pause_millis: u64,
    /// Whether tables come and go, and columns.
    pub schema_changes: bool,
    /// What is wrong on purpose.
    pub canary: Canary,
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
            paging: false,
            clients: 1,
            pause_millis: 60,
            schema_changes: true,
            canary: Canary::None,
        }
    }
}

impl Plan {
    /// In which datacenter a node is.
    pub fn datacenter(&self, node: usize) -> usize {
        node % self.datacenters
    }

    /// The same, if there are several.
    pub fn own_datacenter(&self, node: usize) -> Option<usize> {
        (self.datacenters > 1).then(|| self.datacenter(node))
    }
}

/// What a node is asked to do by the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read everything at ALL, which repairs what differs.
    Repair,
    /// Read everything at QUORUM.
    Read,
    /// Deliver hints, and tell for how many nodes some are left.
    DeliverHints,
    /// Tell what it has and knows.
    Report,
}

/// What a node has and knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The metadata of each shard: its number and version.
    pub metadata: Vec<(u64, Uuid)>,
    /// The tables whose names begin with `u`.
    pub tables: Vec<String>,
    /// What its copies hold: by table, tablet and shard's node, rows as bytes.
    pub copies: BTreeMap<(String, u32), Vec<u8>>,
    /// For how many nodes each shard has hints, in all.
    pub hints: usize,
}

/// A node as its shards and the driver see it.
#[derive(Default)]
pub struct NodeState {
    ready: Cell<bool>,
    stopping: Cell<bool>,
    /// All floors have stopped, or never started.
    pub over: Cell<bool>,
    /// Its floors have started.
    pub up: Cell<bool>,
    /// It voted on metadata when they had.
    pub voted: Cell<bool>,
    /// It takes all others to be up.
    pub sees_all: Cell<bool>,
    /// It knows of tablets that are on the move.
    pub moving: Cell<bool>,
    /// How many statements failed there.
    pub failures: Cell<u64>,
    pub(super) command: Cell<Option<Command>>,
    pub(super) answer: RefCell<Option<Result<Report, String>>>,
}

impl NodeState {
    /// It starts.
    pub fn starts(&self) {
        self.ready.set(false);
        self.stopping.set(false);
        self.over.set(false);
        self.up.set(false);
        self.voted.set(false);
        self.sees_all.set(false);
        self.command.set(None);
        self.answer.take();
    }

    /// Its tables are there: clients may come.
    pub fn set_ready(&self) {
        self.ready.set(true);
    }

    /// Whether clients may come.
    pub fn is_ready(&self) -> bool {
        self.ready.get()
    }

    /// It is to stop in order.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    /// Whether it is to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }
}

/// What all share.
pub struct Shared {
    /// What the cluster is like.
    pub plan: Plan,
    /// Where nodes listen for each other.
    pub addresses: Vec<SocketAddr>,
    /// The nodes.
    pub nodes: Vec<NodeState>,
    /// Of the rows.
    pub history: RefCell<History>,
    /// Of the counters.
    pub counters: RefCell<Counters>,
    /// Of the table that is emptied.
    pub truncations: RefCell<Truncations>,
    /// Of the queries that go from page to page over all nodes.
    pub pages: RefCell<Pages>,
    /// Of the tables that come and go.
    pub schema: RefCell<SchemaBook>,
    /// The version of the metadata under each number, whoever said so first.
    decided: RefCell<BTreeMap<u64, Uuid>>,
    /// Promises that were broken.
    broken: RefCell<Vec<String>>,
    /// Tablets whose data was copied.
    pub copied: Cell<u64>,
    /// Statements that failed, by what they were told, shortened.
    pub failures: RefCell<BTreeMap<String, u64>>,
    working: Cell<bool>,
    seconds: Cell<i64>,
    telling: bool,
}

impl Shared {
    /// For a cluster at these addresses.
    pub fn new(plan: Plan, addresses: Vec<SocketAddr>) -> Rc<Shared> {
        Rc::new(Shared {
            nodes: addresses.iter().map(|_| NodeState::default()).collect(),
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
            working: Cell::new(false),
            seconds: Cell::new(0),
            telling: std::env::var_os("TELL").is_some(),
        })
    }

    /// Has clients work, or rest.
    pub fn set_working(&self, working: bool) {
        self.working.set(working);
    }

    /// Whether clients work.
    pub fn is_working(&self) -> bool {
        self.working.get()
    }

    /// The driver's clock, which is never wrong, says so many seconds since the story began.
    pub fn set_seconds(&self, seconds: i64) {
        self.seconds.set(seconds);
    }

    /// What it said last.
    pub fn seconds(&self) -> i64 {
        self.seconds.get()
    }

    /// A promise was broken.
    pub fn broken(&self, why: String) {
        rt::sim::trace(&why);
        self.broken.borrow_mut().push(why);
    }

    /// The first promise that was broken.
    pub fn first_broken(&self) -> Option<String> {
        self.broken.borrow().first().cloned()
    }

    /// A statement failed on a node. Some errors must never be.
    pub fn failed(&self, node: usize, why: String) {
        self.nodes[node].failures.set(self.nodes[node].failures.get() + 1);
        if why.starts_with("LATE") || why.starts_with("ENDLESS") {
            self.broken(why.clone());
        }
        let kind: String =
            why.split(": ").last().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).take(80).collect();
        *self.failures.borrow_mut().entry(kind).or_default() += 1;
    }

    /// `raft_safety`: what a node knows the metadata of a number to be.
    pub fn knows(&self, node: usize, number: u64, version: Uuid) {
        let known = *self.decided.borrow_mut().entry(number).or_insert(version);
        if known != version {
            self.broken(format!(
                "raft_safety is broken: node {node} has metadata {number} as {version}, others as {known}"
            ));
        }
    }

    /// For whoever wants to follow a story: `TELL=1` prints each of its steps.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.telling {
            eprintln!("{} {}", rt::time::wall_micros() % 1_000_000_000_000 / 1000, what());
        }
    }
}
