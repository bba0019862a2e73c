//! The trials: clusters and what befalls them, each for any number of seeds.
//!
//! What was acknowledged at QUORUM is read at QUORUM, whatever happened; nothing that was deleted comes back; pages are exact; in the end all nodes
//! agree. `tests/seeds.rs` puts all of them to many seeds.

use super::nemesis::{CUTS, DATACENTERS, DEATHS, EXPIRY, FULL, NETWORK, PEACE, POWER, Regime};
use super::shared::Plan;
use super::{Outcome, rough_start, story};
use engine::commitlog::SyncMode;
use rt::time::Duration;

/// What is synced within half a second.
const PERIODIC: SyncMode = SyncMode::Periodic { period: Duration::from_millis(500) };
/// Writes that a story has acknowledged, and reads that it has judged, at least: else its checkers have seen nothing.
const LEAST_DONE: u64 = 50;
/// Pages that it has read at least, and queries that came to their ends, where queries go from page to page.
const LEAST_PAGES: [u64; 2] = [100, 5];

/// When the faults begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begin {
    /// Once there is a cluster.
    Formed,
    /// While its nodes search each other.
    Forming,
}

/// A kind of cluster and what befalls it.
#[derive(Debug)]
pub struct Trial {
    /// Its name.
    pub name: &'static str,
    regime: Regime,
    plan: fn(u64) -> Plan,
    begin: Begin,
}

impl Trial {
    const fn new(name: &'static str, regime: Regime, plan: fn(u64) -> Plan) -> Trial {
        Trial { name, regime, plan, begin: Begin::Formed }
    }

    /// That of a name.
    pub fn of(name: &str) -> Option<&'static Trial> {
        ALL.iter().find(|trial| trial.name == name)
    }

    /// The story of a seed, in which faults come for so long. The error says which promise was broken, or that too little was done.
    pub fn run(&self, seed: u64, time: Duration) -> Result<Outcome, String> {
        let plan = (self.plan)(seed);
        let paging = plan.paging;
        let tell = if self.begin == Begin::Forming { rough_start } else { story };
        let outcome = tell(seed, plan, self.regime, time)?;
        let little = outcome.writes[0] <= LEAST_DONE
            || outcome.reads <= LEAST_DONE
            || paging && (outcome.pages <= LEAST_PAGES[0] || outcome.queries <= LEAST_PAGES[1]);
        if little { Err(format!("seed {seed}: little was done: {outcome:?}")) } else { Ok(outcome) }
    }
}

/// All of them.
pub const ALL: &[Trial] = &[
    Trial::new("network", NETWORK, periodic),
    Trial::new("cuts", CUTS, periodic),
    Trial::new("deaths", DEATHS, periodic),
    Trial::new("power", POWER, batch),
    Trial::new("full", FULL, periodic),
    Trial::new("expiry", EXPIRY, |seed| Plan { expiring: true, ..periodic(seed) }),
    Trial::new("truncate-peace", PEACE, truncating),
    Trial::new("truncate-deaths", DEATHS, truncating),
    Trial::new("truncate-network", NETWORK, truncating),
    Trial::new("truncate-power", POWER, |seed| Plan { truncating: true, ..batch(seed) }),
    Trial::new("moves-deaths", DEATHS, with_room),
    Trial::new("moves-network", NETWORK, with_room),
    Trial::new("datacenters", DATACENTERS, two_datacenters),
    Trial { begin: Begin::Forming, ..Trial::new("forming-power", POWER, batch) },
    Trial { begin: Begin::Forming, ..Trial::new("forming-cuts", CUTS, batch) },
    Trial::new("pages-deaths", DEATHS, |seed| paging(seed, with_room(seed))),
    Trial::new("pages-network", NETWORK, |seed| paging(seed, if seed % 2 == 0 { periodic(0) } else { with_room(1) })),
    Trial::new("pages-power", POWER, |seed| paging(seed, batch(seed))),
];

/// Clusters of different sizes, nodes of different sizes.
fn sized(seed: u64, sync: SyncMode) -> Plan {
    let shards = match seed % 4 {
        0 => vec![2, 2, 2],
        1 => vec![1, 2, 3],
        2 => vec![2, 1, 2, 1],
        _ => vec![1, 2, 1, 1, 2],
    };
    Plan { shards, sync, ..Plan::default() }
}

/// What a loss of power takes is the last half second.
pub fn periodic(seed: u64) -> Plan {
    sized(seed, PERIODIC)
}

/// It takes nothing that was acknowledged.
pub fn batch(seed: u64) -> Plan {
    sized(seed, SyncMode::Batch)
}

fn truncating(seed: u64) -> Plan {
    Plan { truncating: true, ..periodic(seed) }
}

/// Each table's tablets have three copies on five nodes, or on four, and move.
pub fn with_room(seed: u64) -> Plan {
    Plan { moving: true, ..periodic(2 + seed % 2) }
}

/// Three nodes here, two there, a copy on each.
pub fn two_datacenters(seed: u64) -> Plan {
    Plan { shards: vec![1, 2, 1, 1, 2], copies: 5, datacenters: 2, ..periodic(seed) }
}

/// Queries go from page to page over all nodes.
fn paging(seed: u64, plan: Plan) -> Plan {
    Plan { paging: true, pause_millis: 30, schema_changes: seed.is_multiple_of(2), ..plan }
}
