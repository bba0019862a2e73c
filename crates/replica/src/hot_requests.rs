//! Samples the requests of a replica for its hot partitions, and refuses requests of hot partitions
//! on an overloaded shard ([`crate::hot`]).
//!
//! Only requests of class `User` are sampled and refused. Never refused is the work for operations
//! that were accepted before: repairs, repetitions, logged batches, later parts of a page
//! ([`Context::may_be_protected_against`]).

use crate::error::{LimitedBy, RateLimited, ReplicaError};
use crate::excess::{Excess, jitter_ms};
use crate::hot::tracker::Operation;
use crate::hot::{HotPartition, HotSettings, MOST_RECORDINGS, PartitionId, TabletLoad, TopPartitions};
use crate::limiter::{LimitKind, hash};
use crate::rate_limit::only_token;
use crate::replica::Replica;
use crate::request::{Class, Context, ReplicaRequest, ReplicaResponse};
use bytes::Bytes;
use model::id::TableId;
use model::key::DecoratedKey;
use model::range::PartitionRange;
use rt::time::{Duration, Instant};
use std::cell::Cell;
use std::rc::Rc;

/// Calls `each` with the partitions of a request: their table, key and kind of operation. A scan of
/// several partitions has none. The key of a partition that is read by its token is not known: it
/// is empty, as no key is.
fn partitions(request: &ReplicaRequest, mut each: impl FnMut(TableId, &DecoratedKey, LimitKind)) {
    match request {
        ReplicaRequest::Read(command) | ReplicaRequest::Digest(command) | ReplicaRequest::ReadAndDigest(command) => {
            for key in command.ranges.iter().filter_map(key_of) {
                each(command.table, &key, LimitKind::Read);
            }
        }
        // Its operation was counted when its page was read.
        ReplicaRequest::ReadFragments(_) => {}
        ReplicaRequest::Write(_) | ReplicaRequest::CounterUpdate(_) => {
            for (mutation, key) in request.mutations() {
                each(mutation.table(), key, LimitKind::Write);
            }
        }
    }
}

/// The key of the only partition of a range.
fn key_of(range: &PartitionRange) -> Option<DecoratedKey> {
    let by_token = || Some(DecoratedKey { token: only_token(range)?, key: Bytes::new() });
    range.singular_key().or_else(by_token)
}

/// The bytes of a request's result, or of its mutations.
fn bytes_of(request: &ReplicaRequest, answer: &ReplicaResponse) -> u64 {
    match answer {
        ReplicaResponse::Page(page) | ReplicaResponse::Digested(page, _) => page.body.len() as u64,
        _ => request.mutations().iter().map(|(mutation, _)| mutation.as_bytes().len() as u64).sum(),
    }
}

/// A request that is performed as a sample.
#[derive(Default)]
pub(crate) struct Sample {
    /// The CPU time of its polls.
    cpu: Duration,
}

impl Sample {
    /// Adds the time of a poll that began at `began`.
    pub(crate) fn add(&mut self, began: Instant) {
        self.cpu += rt::time::now().saturating_duration_since(began);
    }
}

/// Ends a recording whose request does not wait for it any more.
struct Recorder<'a> {
    replica: &'a Replica,
    id: u64,
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        self.replica.hot.finish(self.id);
    }
}

/// One of the [`MOST_RECORDINGS`] recordings of a node. Dropping it makes room for another one.
#[derive(Debug)]
pub struct RecordingPermit {
    taken: Rc<Cell<u32>>,
}

impl Drop for RecordingPermit {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - 1);
    }
}

/// When a client should try again at the earliest, in ms: the load of the shard is judged again by
/// then.
const RETRY_AFTER_MS: u32 = 1_000;

/// The refusal of an operation of a hot partition.
fn refusal(id: PartitionId, kind: LimitKind) -> RateLimited {
    let retry_after_ms = RETRY_AFTER_MS + jitter_ms(rt::random::u64() as u32);
    let excess = Excess { retry_after_ms, ..Excess::default() };
    RateLimited { kind, table: id.table, by: LimitedBy::Protection, partition: hash(id.token, kind), excess }
}

impl Replica {
    /// Begins a sample of a request that is about to be performed, if it is one.
    #[inline]
    pub(crate) fn begin_sample(&self, context: &Context) -> Option<Sample> {
        (self.hot.is_sampled() && context.class == Class::User).then(Sample::default)
    }

    /// Adds the sample of a request that was performed.
    #[cold]
    pub(crate) fn add_sample(&self, request: &ReplicaRequest, answer: &ReplicaResponse, sample: Sample) {
        // Of several partitions, each gets an equal part.
        let count = match request {
            ReplicaRequest::Read(command)
            | ReplicaRequest::Digest(command)
            | ReplicaRequest::ReadAndDigest(command)
            | ReplicaRequest::ReadFragments(command) => command.ranges.len(),
            ReplicaRequest::Write(_) | ReplicaRequest::CounterUpdate(_) => request.mutations().len(),
        };
        let count = count.max(1) as u64;
        let (bytes, cpu_nanos) = (bytes_of(request, answer) / count, sample.cpu.as_nanos() as u64 / count);
        partitions(request, |table, key, kind| {
            let last_token = self.engine.last_token_of_tablet(table, key);
            let operation = Operation { kind, last_token, bytes, cpu_nanos };
            self.hot.performed(PartitionId { table, token: key.token }, &key.key, operation);
        });
        self.hot.update_if_due();
    }

    /// Whether requests of hot partitions are refused now.
    #[inline]
    pub fn protects_itself(&self) -> bool {
        self.hot.refuses()
    }

    /// Decides about an operation of a partition that this shard coordinates and owns. If it is
    /// accepted here, it is not refused in [`Replica::perform`].
    ///
    /// # Errors
    ///
    /// [`RateLimited`]
    pub fn protect(&self, id: PartitionId, kind: LimitKind) -> Result<(), RateLimited> {
        match self.hot.admits(id, kind) {
            true => Ok(()),
            false => Err(refusal(id, kind)),
        }
    }

    /// Refuses a request with a hot partition, as long as this shard is overloaded.
    #[cold]
    pub(crate) fn check_protection(&self, request: &ReplicaRequest, context: &Context) -> Result<(), ReplicaError> {
        if !context.may_be_protected_against() {
            return Ok(());
        }
        let mut result = Ok(());
        partitions(request, |table, key, kind| {
            let id = PartitionId { table, token: key.token };
            if !self.hot.performs(id, kind) {
                result = Err(ReplicaError::RateLimited(refusal(id, kind)));
            }
        });
        if result.is_err() {
            context.trace("Hot partition protection: refused by the replica");
        }
        result
    }

    /// Behaves as if this shard were overloaded, until its next look at its load: accepts this part
    /// of the operations of a partition. In simulations no work takes time.
    #[cfg(feature = "sim")]
    pub fn seem_overloaded(&self, id: PartitionId, accept: f64) {
        self.hot.share_out(id, accept);
    }

    /// Sets how hot partitions are treated.
    pub fn set_hot_partitions(&self, settings: HotSettings) {
        self.hot.set(settings);
    }

    /// Sets whether all coordinators understand a refusal by the protection. Until then, nothing is
    /// refused.
    pub fn set_protection_understood(&self, is_understood: bool) {
        self.hot.set_understood(is_understood);
    }

    /// How hot partitions are treated.
    pub fn hot_settings(&self) -> HotSettings {
        self.hot.settings()
    }

    /// The hottest partitions of this shard, the hottest first.
    pub fn hot_partitions(&self, most: usize) -> Vec<HotPartition> {
        self.hot.hottest(most)
    }

    /// The operations of the tablets of this shard, in the order of tables and tokens.
    pub fn tablet_loads(&self) -> Vec<TabletLoad> {
        self.hot.tablets()
    }

    /// Admits a recording of this node; `None` if there are [`MOST_RECORDINGS`] already. Only one
    /// shard of a node may decide that, because recordings do not end on all shards at once.
    pub fn admit_recording(&self) -> Option<RecordingPermit> {
        let taken = &self.hot.admitted;
        if taken.get() >= MOST_RECORDINGS {
            return None;
        }
        taken.set(taken.get() + 1);
        Some(RecordingPermit { taken: taken.clone() })
    }

    /// Counts the operations of these tables by partition for some time. About `capacity`
    /// partitions are counted at once. Dropping the future ends it.
    pub async fn top_partitions(&self, tables: Vec<TableId>, capacity: usize, duration: Duration) -> TopPartitions {
        let recorder = Recorder { replica: self, id: self.hot.record(tables, capacity) };
        rt::time::sleep(duration).await;
        self.hot.finish(recorder.id).unwrap_or_default()
    }
}
