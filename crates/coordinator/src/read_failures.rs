//! Collects why replicas failed during a read, and makes the client's error of it.

use super::replica_failure::{FailureClass, ReplicaFailure, SendError};
use super::response_tracker::ResponseTracker;
use super::{Consistency, CoordinatorError};
use model::id::HostId;
use replica::ReplicaError;
use std::net::IpAddr;

/// The failures of the replicas of one read.
pub(super) struct ReadFailures {
    consistency: Consistency,
    /// Replicas that count towards the level and were up when the read began.
    alive: u32,
    /// Replicas that did not receive the request.
    not_sent: u32,
    /// Whether a replica received the request, or may have, and did not respond.
    unanswered: bool,
    /// Replicas that responded with a failure: address and reason.
    failed: Vec<(Option<IpAddr>, String)>,
    /// The error if the request itself is refused: asking another replica would not help.
    invalid: Option<CoordinatorError>,
    /// Whether a replica refused the request as routed by outdated metadata.
    pub outdated: bool,
}

impl ReadFailures {
    /// No failures yet.
    pub fn new(consistency: Consistency, alive: u32) -> ReadFailures {
        ReadFailures {
            consistency,
            alive,
            not_sent: 0,
            unanswered: false,
            failed: Vec::new(),
            invalid: None,
            outdated: false,
        }
    }

    /// Whether a replica refused the read by a rate limit. Then it is not repeated.
    pub fn is_rate_limited(&self) -> bool {
        matches!(self.invalid, Some(CoordinatorError::RateLimited { .. }))
    }

    /// Records the failure of the replica at an address.
    pub fn record(&mut self, address: Option<IpAddr>, failure: ReplicaFailure) {
        let failure = match failure {
            ReplicaFailure::Refused(error) => match CoordinatorError::of_any_replica(error) {
                Ok(error) => return self.invalid = Some(error),
                Err(error) => ReplicaFailure::Refused(error),
            },
            failure => failure,
        };
        if failure.is_stale() {
            self.outdated = true;
            return;
        }
        match failure.class() {
            FailureClass::NotSent => self.not_sent += 1,
            FailureClass::Unanswered => self.unanswered = true,
            FailureClass::Failed => self.failed.push((address, failure.why())),
        }
    }

    /// Records the failure of a read repair. A refusal of the repair's rows is not an error of the
    /// read itself.
    pub fn record_unrepaired(&mut self, host: HostId, address: Option<IpAddr>, failure: ReplicaFailure) {
        match failure {
            ReplicaFailure::Refused(ReplicaError::Rejected(why)) | ReplicaFailure::Send(SendError::Refused(why)) => {
                let node = address.map_or_else(|| host.to_string(), |address| address.to_string());
                self.failed.push((address, format!("node {node} refuses rows that it lacks: {why}")));
            }
            other => self.record(address, other),
        }
    }

    /// The error of a read with too few responses. `data_present`: the rows have arrived. `late`:
    /// the deadline passed, which takes precedence over other causes.
    pub fn error(&mut self, tracker: &ResponseTracker, data_present: bool, late: bool) -> CoordinatorError {
        if let Some(error) = self.invalid.take().filter(|_| !late) {
            return error;
        }
        let (consistency, required, received) = (self.consistency, tracker.required(), tracker.received());
        if !late && self.failed.is_empty() && !self.unanswered && self.not_sent > 0 {
            // Every missing replica was unreachable: the error is the same as if it had been known
            // to be down.
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
