//! Why replicas did not answer a read, and the error that comes of it.

use super::miss::{Miss, MissClass, Unreached};
use super::tally::Tally;
use super::{Consistency, CoordinatorError};
use model::id::HostId;
use replica::ReplicaError;
use std::net::IpAddr;

/// What kept replicas from answering a read.
pub(super) struct Misses {
    consistency: Consistency,
    /// Replicas that count and were alive when the read began.
    alive: u32,
    /// How many of these turned out to be unreachable: they did not get the request.
    not_sent: u32,
    /// A replica got the request, or may have, and did not answer.
    unanswered: bool,
    /// Replicas that answered that they failed.
    failed: Vec<(Option<IpAddr>, String)>,
    /// The request is refused, whoever is asked.
    invalid: Option<CoordinatorError>,
    /// A replica refused it as routed by outdated metadata.
    pub outdated: bool,
}

impl Misses {
    /// None yet.
    pub fn new(consistency: Consistency, alive: u32) -> Misses {
        Misses {
            consistency,
            alive,
            not_sent: 0,
            unanswered: false,
            failed: Vec::new(),
            invalid: None,
            outdated: false,
        }
    }

    /// Remembers why the replica at an address did not do what it was asked.
    pub fn note(&mut self, address: Option<IpAddr>, miss: Miss) {
        match miss {
            Miss::Refused(ReplicaError::NoSuchTable) => self.invalid = Some(CoordinatorError::NoSuchTable),
            Miss::Refused(ReplicaError::Rejected(why)) => self.invalid = Some(CoordinatorError::Invalid(why)),
            Miss::Refused(ReplicaError::Overloaded(why)) => self.invalid = Some(CoordinatorError::Overloaded(why)),
            Miss::Refused(ReplicaError::Cancelled) => self.invalid = Some(CoordinatorError::Cancelled),
            other if other.is_stale() => self.outdated = true,
            other => match other.class() {
                MissClass::NotSent => self.not_sent += 1,
                MissClass::Unanswered => self.unanswered = true,
                MissClass::Failed => self.failed.push((address, other.why())),
            },
        }
    }

    /// Remembers why a replica did not take what it lacks. What it refuses is no fault of the read.
    pub fn note_unrepaired(&mut self, host: HostId, address: Option<IpAddr>, miss: Miss) {
        match miss {
            Miss::Refused(ReplicaError::Rejected(why)) | Miss::Unreached(Unreached::Refused(why)) => {
                let node = address.map_or_else(|| host.to_string(), |address| address.to_string());
                self.failed.push((address, format!("node {node} refuses rows that it lacks: {why}")));
            }
            other => self.note(address, other),
        }
    }

    /// The error of a read that got too little. `data_present`: the rows came. `late`: the time ran out, whatever else was the matter.
    pub fn error(&mut self, tally: &Tally, data_present: bool, late: bool) -> CoordinatorError {
        if let Some(error) = self.invalid.take().filter(|_| !late) {
            return error;
        }
        let (consistency, required, received) = (self.consistency, tally.required(), tally.received());
        if !late && self.failed.is_empty() && !self.unanswered && self.not_sent > 0 {
            // Every replica that is missing is unreachable, as if it had been known to be down at the beginning.
            let alive = self.alive.saturating_sub(self.not_sent).min(required.saturating_sub(1));
            return CoordinatorError::Unavailable { consistency, required, alive };
        }
        if late || self.failed.is_empty() {
            return CoordinatorError::Timeout { consistency, required, received, data_present };
        }
        let why = self.failed[0].1.clone();
        let nodes = self.failed.iter().filter_map(|(node, _)| *node).collect();
        let failures = self.failed.len() as u32;
        CoordinatorError::Failed { consistency, required, received, failures, nodes, data_present, why }
    }
}
