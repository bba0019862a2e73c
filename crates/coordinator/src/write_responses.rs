//! Sends mutations to all their replicas in parallel, and counts the responses until the level is
//! reached.
//!
//! Each replica gets one request with all of its mutations, in a task of its own. The task
//! continues when the level is reached or the client disconnects. [`super::replica_writer`] handles
//! replicas that do not accept the write.

use super::client::Message;
use super::error::Attempt;
use super::nodes::Nodes;
use super::replica_failure::ReplicaFailure;
use super::response_tracker::{LevelStatus, ResponseTracker};
use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use crate::hints::Refused;
use cluster::metadata::Table;
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::Replicas;
use replica::{Mutations, RateLimited, ReplicaRequest};
use rt::sync::{Deadline, Notify};
use rt::time::Elapsed;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

/// Mutations that have the same replicas.
pub(super) struct WriteGroup {
    pub replicas: Replicas,
    /// How many of the replicas, the last ones, are pending: they are still receiving the tablet's
    /// data.
    pub pending: usize,
    pub table: Rc<Table>,
    pub mutations: Mutations,
    pub tracker: ResponseTracker,
}

/// The indexes of the groups that are sent to one replica.
pub(super) type GroupIndexes = SmallVec<[usize; 1]>;

/// The state of a write, shared by the tasks that send it.
pub(super) struct WriteResponses {
    pub groups: RefCell<Vec<WriteGroup>>,
    /// Failures that replicas responded with: address and reason.
    pub failures: RefCell<Vec<(Option<IpAddr>, String)>>,
    /// The client's error if a replica refused the write for a reason that holds on all replicas.
    pub refused: RefCell<Option<CoordinatorError>>,
    /// The refusal if a replica refused the write by a rate limit.
    pub rate_limited: Cell<Option<RateLimited>>,
    /// Replicas that have neither responded nor failed.
    pub outstanding: Cell<usize>,
    /// Whether a replica received the write, or may have.
    pub was_sent: Cell<bool>,
    pub changed: Notify,
    pub nodes: Rc<Nodes>,
    pub consistency: Consistency,
    /// Whether the request still waits for the level.
    pub is_open: Cell<bool>,
    /// Whether a replica refused the write as routed by outdated metadata while the request waited.
    pub outdated: Cell<bool>,
    /// Replicas that did not accept the write and have no hint for it yet.
    pub lacking: RefCell<Vec<Lacking>>,
    /// Hints, or notes of missed writes, that are not stored yet.
    pub unstored: Cell<usize>,
    /// Why the disk failed to record that a replica misses the write.
    pub not_recorded: RefCell<Option<String>>,
}

/// A replica that did not accept its mutations.
pub(super) struct Lacking {
    pub replica: TabletReplica,
    pub message: Rc<Message>,
    pub failure: ReplicaFailure,
}

/// The responses of the replicas of a group, counted for its level.
#[derive(Clone, Copy, Default)]
struct LevelCounts {
    required: u32,
    received: u32,
    failures: u32,
}

/// The outcome of a write.
enum Outcome {
    Reached,
    /// The level is reached, but neither a hint nor a note exists for a replica that lacks the
    /// write.
    NotRecorded,
    Unreachable,
    Outdated,
}

impl WriteResponses {
    /// Applies `update` to the trackers of these groups, for a response of a replica.
    pub fn update_trackers(
        &self,
        replica: TabletReplica,
        groups: &[usize],
        update: impl Fn(&mut ResponseTracker, super::response_tracker::DatacenterId),
    ) {
        let datacenter = self.nodes.datacenter(replica.host);
        let mut all = self.groups.borrow_mut();
        let is_of = |group: &usize| all[*group].replicas.contains(&replica);
        debug_assert!(groups.iter().all(is_of), "a replica is counted for the groups that it is in");
        groups.iter().for_each(|group| update(&mut all[*group].tracker, datacenter));
        drop(all);
        self.changed.notify_one();
    }

    /// Whether each of these groups has a replica that is up.
    pub fn has_live(&self, groups: &[usize]) -> bool {
        let all = self.groups.borrow();
        groups.iter().all(|group| all[*group].replicas.iter().any(|replica| self.nodes.is_alive(replica.host)))
    }

    pub fn status(&self) -> LevelStatus {
        let groups = self.groups.borrow();
        let mut status = LevelStatus::Reached;
        for group in groups.iter() {
            match group.tracker.status() {
                LevelStatus::Unreachable => return LevelStatus::Unreachable,
                LevelStatus::Open => status = LevelStatus::Open,
                LevelStatus::Reached => {}
            }
        }
        status
    }

    /// Acknowledges the write once its level is reached and hints are stored for all replicas that
    /// are known to lack it. The coordinator may be killed right after that.
    async fn outcome(&self) -> Outcome {
        loop {
            match self.status() {
                LevelStatus::Reached if self.not_recorded.borrow().is_some() => return Outcome::NotRecorded,
                LevelStatus::Reached if self.unstored.get() == 0 => return Outcome::Reached,
                LevelStatus::Reached => self.changed.notified().await,
                LevelStatus::Unreachable if self.rate_limited.get().is_some() => return Outcome::Unreachable,
                _ if self.outdated.get() => return Outcome::Outdated,
                // If replicas are only unreachable, wait for the others: the error says how many
                // responded.
                LevelStatus::Unreachable if !self.failures.borrow().is_empty() || self.outstanding.get() == 0 => {
                    return Outcome::Unreachable;
                }
                LevelStatus::Open | LevelStatus::Unreachable => self.changed.notified().await,
            }
        }
    }

    /// Waits for the outcome. Afterwards, and if this future is dropped, the request is closed.
    async fn closing_outcome(&self, deadline: Deadline) -> Result<Outcome, Elapsed> {
        struct Closing<'a>(&'a Cell<bool>);
        impl Drop for Closing<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        let _closing = Closing(&self.is_open);
        deadline.limit(self.outcome()).await
    }

    /// Records that a replica refused the write as outdated. False if the request no longer waits:
    /// then it will not be repeated.
    pub fn mark_outdated(&self) -> bool {
        self.outdated.set(true);
        self.changed.notify_one();
        self.is_open.get()
    }

    /// Records that a hint must be stored before the write is acknowledged.
    pub fn begin_hint(&self) {
        self.unstored.set(self.unstored.get() + 1);
    }

    /// Records that a hint is stored, or that its write is recorded as missed.
    pub fn end_hint(&self) {
        self.unstored.set(self.unstored.get() - 1);
        self.changed.notify_one();
    }

    /// Records that a hint was not stored.
    pub fn not_stored(&self, refused: &Refused) {
        tracing::debug!(%refused, "a hint was not stored");
        if let Refused::NotRecorded(error) = refused {
            self.not_recorded.borrow_mut().get_or_insert_with(|| error.to_string());
        }
    }

    /// Records that a replica has responded or failed.
    pub fn replica_done(&self) {
        self.outstanding.set(self.outstanding.get() - 1);
        self.changed.notify_one();
    }

    /// The error if the disk failed to record that a replica misses the write. The other replicas
    /// keep the write: an error with too few responses says that it may have been applied.
    fn not_recorded_error(&self) -> CoordinatorError {
        let LevelCounts { required, received, failures } = self.worst();
        CoordinatorError::Failed {
            consistency: self.consistency,
            required,
            received: received.min(required.saturating_sub(1)),
            failures: failures.max(1),
            nodes: Vec::new(),
            data_present: false,
            why: self.not_recorded.take().unwrap_or_default(),
        }
    }

    /// The responses of one group, for errors: of a group that cannot reach its level if there is
    /// one, and among these of the group that lacks most.
    fn worst(&self) -> LevelCounts {
        let groups = self.groups.borrow();
        let worst = groups.iter().max_by_key(|group| {
            let tracker = &group.tracker;
            (tracker.status() == LevelStatus::Unreachable, tracker.required() - tracker.received())
        });
        worst.map_or_else(LevelCounts::default, |group| LevelCounts {
            required: group.tracker.required(),
            received: group.tracker.received(),
            failures: group.tracker.failures(),
        })
    }
}

impl Coordinator {
    /// Sends groups to their replicas, except to `done`, which has them, and waits for the level.
    pub(super) async fn send_groups(
        &self,
        groups: Vec<WriteGroup>,
        nodes: Rc<Nodes>,
        done: Option<TabletReplica>,
        options: &RequestOptions,
    ) -> Result<(), Attempt> {
        let consistency = options.consistency;
        let mut targets: SmallVec<[(TabletReplica, GroupIndexes); 4]> = SmallVec::new();
        debug_assert!(!groups.is_empty(), "a write has mutations");
        for (at, group) in groups.iter().enumerate() {
            for replica in &group.replicas {
                match targets.iter_mut().find(|(known, _)| known == replica) {
                    Some((_, groups)) => groups.push(at),
                    None => targets.push((*replica, SmallVec::from_slice(&[at]))),
                }
            }
        }
        let responses = Rc::new(WriteResponses {
            groups: RefCell::new(groups),
            failures: RefCell::default(),
            refused: RefCell::default(),
            rate_limited: Cell::new(None),
            outstanding: Cell::new(targets.len()),
            was_sent: Cell::new(done.is_some()),
            changed: Notify::new(),
            nodes,
            consistency,
            is_open: Cell::new(true),
            outdated: Cell::new(false),
            lacking: RefCell::default(),
            unstored: Cell::new(0),
            not_recorded: RefCell::default(),
        });
        // Replicas that get the same mutations share a message.
        let mut messages: SmallVec<[(GroupIndexes, Rc<Message>); 1]> = SmallVec::new();
        for (replica, groups) in targets {
            if done == Some(replica) {
                responses.replica_done();
                responses.update_trackers(replica, &groups, ResponseTracker::answered);
                continue;
            }
            let message = match messages.iter().find(|(known, _)| *known == groups) {
                Some((_, message)) => message.clone(),
                None => {
                    let message = message_of(&responses.groups.borrow(), &groups);
                    messages.push((groups.clone(), message.clone()));
                    message
                }
            };
            if !responses.nodes.is_alive(replica.host) {
                responses.begin_hint();
            }
            let (writer, responses, context) = (self.writer.clone(), responses.clone(), options.context.clone());
            rt::task::spawn(async move { writer.send_write(&responses, replica, groups, message, context).await })
                .detach();
        }
        let outcome = responses.closing_outcome(options.context.deadline).await;
        if !matches!(outcome, Ok(Outcome::Reached | Outcome::Outdated)) {
            self.writer.hint_after_failure(&responses, &options.context);
        }
        let LevelCounts { required, received, failures } = responses.worst();
        match outcome {
            Ok(Outcome::Reached) => Ok(()),
            Ok(Outcome::NotRecorded) => Err(responses.not_recorded_error().into()),
            Ok(Outcome::Outdated) => Err(Attempt::Outdated { required }),
            Ok(Outcome::Unreachable) => {
                if let Some(error) = responses.refused.take() {
                    return Err(error.into());
                }
                if let Some(refused) = responses.rate_limited.get() {
                    return Err(self.rate_limited(refused, false).into());
                }
                let failed = responses.failures.borrow();
                if failed.is_empty() && !responses.was_sent.get() {
                    count(&self.counters.unavailable);
                    return Err(CoordinatorError::Unavailable { consistency, required, alive: 0 }.into());
                }
                if failed.is_empty() {
                    count(&self.counters.write_timeouts);
                    let data_present = false;
                    return Err(CoordinatorError::Timeout { consistency, required, received, data_present }.into());
                }
                let why = failed.first().map_or_else(String::new, |(_, why)| why.clone());
                let nodes = failed.iter().filter_map(|(node, _)| *node).collect();
                let data_present = false;
                let error =
                    CoordinatorError::Failed { consistency, required, received, failures, nodes, data_present, why };
                Err(error.into())
            }
            Err(_) => {
                count(&self.counters.write_timeouts);
                // The level may be reached, and a hint not stored.
                let received = received.min(required.saturating_sub(1));
                Err(CoordinatorError::Timeout { consistency, required, received, data_present: false }.into())
            }
        }
    }
}

fn message_of(groups: &[WriteGroup], wanted: &[usize]) -> Rc<Message> {
    let mutations: Mutations = wanted.iter().flat_map(|group| groups[*group].mutations.iter().cloned()).collect();
    debug_assert!(!mutations.is_empty(), "a message to a replica has mutations");
    Rc::new(Message::new(ReplicaRequest::Write(mutations)))
}
