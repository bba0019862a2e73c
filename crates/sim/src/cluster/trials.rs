//! The trials: kinds of clusters with their faults, each for any number of seeds.
//!
//! Each trial checks that writes acknowledged at QUORUM are read at QUORUM, that deleted data does
//! not return, and that pages are exact. At the end, all nodes must agree. `tests/seeds.rs` runs
//! all trials with many seeds.

use super::nemesis::{CUTS, DATACENTERS, DEATHS, EXPIRY, FULL, FaultProfile, NETWORK, PEACE, POWER};
use super::rate_limits;
use super::shared::Plan;
use super::{Outcome, rough_start, scenario};
use engine::commitlog::SyncMode;
use rt::time::Duration;

/// The commitlog is synced every half second.
const PERIODIC: SyncMode = SyncMode::Periodic { period: Duration::from_millis(500) };
/// A scenario must have acknowledged more writes, and checked more reads. Otherwise its checkers
/// prove nothing.
const LEAST_DONE: u64 = 50;
/// The same for pages, and for queries read to their end, where `Plan::paging` is set.
const LEAST_PAGES: [u64; 2] = [100, 5];

/// When faults begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begin {
    /// After the cluster has formed.
    Formed,
    /// While its nodes find each other.
    Forming,
}

/// A kind of cluster with its faults.
#[derive(Debug)]
pub struct Trial {
    /// Its name, as in `TRIALS`.
    pub name: &'static str,
    profile: FaultProfile,
    plan: fn(u64) -> Plan,
    begin: Begin,
}

impl Trial {
    const fn new(name: &'static str, profile: FaultProfile, plan: fn(u64) -> Plan) -> Trial {
        Trial { name, profile, plan, begin: Begin::Formed }
    }

    /// The trial with this name.
    pub fn of(name: &str) -> Option<&'static Trial> {
        ALL.iter().find(|trial| trial.name == name)
    }

    /// Runs the scenario of a seed, with faults for `time`. The error has the broken promise, or
    /// says that too little was done.
    pub fn run(&self, seed: u64, time: Duration) -> Result<Outcome, String> {
        let plan = (self.plan)(seed);
        let (paging, limiting) = (plan.paging, plan.is_limiting());
        let run = if self.begin == Begin::Forming { rough_start } else { scenario };
        let outcome = run(seed, plan, self.profile, time)?;
        let little = outcome.writes[0] <= LEAST_DONE
            || outcome.reads <= LEAST_DONE
            || limiting && outcome.protected == 0
            || paging && (outcome.pages <= LEAST_PAGES[0] || outcome.queries <= LEAST_PAGES[1]);
        if little { Err(format!("seed {seed}: little was done: {outcome:?}")) } else { Ok(outcome) }
    }
}

/// All trials.
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
    Trial::new("moves-cuts", CUTS, with_room),
    Trial::new("replication-deaths", DEATHS, |seed| Plan { replicating: true, ..with_room(seed) }),
    Trial::new("replication-network", NETWORK, |seed| Plan { replicating: true, ..with_room(seed) }),
    Trial::new("members-deaths", DEATHS, changing_members),
    Trial::new("members-network", NETWORK, changing_members),
    Trial::new("shards-deaths", DEATHS, |seed| Plan { growing: true, ..with_room(seed) }),
    Trial::new("shards-power", POWER, |seed| Plan { growing: true, sync: SyncMode::Batch, ..with_room(seed) }),
    Trial::new("datacenters", DATACENTERS, two_datacenters),
    Trial { begin: Begin::Forming, ..Trial::new("forming-power", POWER, batch) },
    Trial { begin: Begin::Forming, ..Trial::new("forming-cuts", CUTS, batch) },
    Trial::new("pages-deaths", DEATHS, |seed| paging(seed, with_room(seed))),
    Trial::new("pages-network", NETWORK, |seed| paging(seed, if seed % 2 == 0 { periodic(0) } else { with_room(1) })),
    Trial::new("limits-network", NETWORK, |seed| limiting(periodic(seed))),
    Trial::new("limits-moves-deaths", DEATHS, |seed| limiting(with_room(seed))),
    Trial::new("limits-kinds-deaths", DEATHS, |seed| {
        let plan = if seed % 2 == 0 { periodic(0) } else { with_room(seed) };
        Plan { limited: rate_limits::of_other_kinds(), ..limiting(plan) }
    }),
    Trial::new("pages-power", POWER, |seed| paging(seed, batch(seed))),
];

/// Clusters of different sizes, with nodes of different sizes.
fn sized(seed: u64, sync: SyncMode) -> Plan {
    let shards = match seed % 4 {
        0 => vec![2, 2, 2],
        1 => vec![1, 2, 3],
        2 => vec![2, 1, 2, 1],
        _ => vec![1, 2, 1, 1, 2],
    };
    Plan { shards, sync, ..Plan::default() }
}

/// A power loss may lose the last half second.
pub fn periodic(seed: u64) -> Plan {
    sized(seed, PERIODIC)
}

/// A power loss loses no acknowledged write.
pub fn batch(seed: u64) -> Plan {
    sized(seed, SyncMode::Batch)
}

fn truncating(seed: u64) -> Plan {
    Plan { truncating: true, ..periodic(seed) }
}

/// Each tablet has three replicas on four or five nodes, and tablets move.
pub fn with_room(seed: u64) -> Plan {
    Plan { moving: true, ..periodic(2 + seed % 2) }
}

/// Like [`with_room`], but nodes also leave, are removed or replaced, and come back as new nodes.
pub fn changing_members(seed: u64) -> Plan {
    Plan { member_changes: true, ..with_room(seed) }
}

/// Three nodes in one datacenter and two in the other, with a replica on each.
pub fn two_datacenters(seed: u64) -> Plan {
    Plan { shards: vec![1, 2, 1, 1, 2], copies: 5, datacenters: 2, ..periodic(seed) }
}

/// Clients of all nodes use one partition far beyond its rate limit.
pub fn limiting(plan: Plan) -> Plan {
    Plan { limited: rate_limits::of_operations(), pause_millis: 25, schema_changes: false, ..plan }
}

/// Queries are paged over clients of all nodes.
fn paging(seed: u64, plan: Plan) -> Plan {
    Plan { paging: true, pause_millis: 30, schema_changes: seed.is_multiple_of(2), ..plan }
}
