//! Requests whose data has a single replica, on this node: sent to it without an allocation, and
//! without a plan for several replicas. An optimisation inside the paths of reads
//! ([`Coordinator::read_part`]) and writes ([`Coordinator::write`]), which repeat refused requests
//! on the general path.

use super::client::Message;
use super::error::Attempt;
use super::level::needs_one;
use super::read::Query;
use super::replica_failure::ReplicaFailure;
use super::{Coordinator, CoordinatorError, RequestOptions, count};
use cluster::metadata::Metadata;
use cluster::tablets::TabletReplica;
use replica::{Mutations, Page, RateLimitMode, ReadCommand, ReplicaError, ReplicaRequest, ReplicaResponse};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

impl Coordinator {
    /// The only replica of a tablet. `None` unless it is on this node, the level needs one
    /// response, and the query was planned with the newest metadata.
    ///
    /// The caller must hold the returned metadata until the response arrives. A wait for this
    /// metadata to become unused then also waits for this read.
    #[inline]
    pub(super) fn only_replica_read(
        &self,
        query: &Query,
        tablet: u32,
        options: &RequestOptions,
    ) -> Option<(TabletReplica, Rc<Metadata>)> {
        let only = query.table.tablets.only_replica(tablet, self.host)?;
        let metadata = self.metadata();
        let is_newest = metadata.number == options.context.metadata_number;
        (is_newest && needs_one(&metadata, &query.table, options.consistency)).then_some((only, metadata))
    }

    /// Reads a page from a tablet's only replica.
    #[inline]
    pub(super) async fn ask_only(
        &self,
        only: TabletReplica,
        command: &Rc<ReadCommand>,
        options: &RequestOptions,
    ) -> Result<Box<Page>, Attempt> {
        let message = Message::new(ReplicaRequest::Read(command.clone()));
        // Pinned here, so that this large future is not moved.
        let asked = pin!(self.client.send(only, &message, &options.context));
        let failure = match options.context.cancel.interrupt(asked).await {
            Some(Ok(ReplicaResponse::Page(page))) => return Ok(page),
            Some(Ok(_)) => ReplicaFailure::unexpected_answer("a read"),
            Some(Err(failure)) => failure,
            None => ReplicaFailure::Refused(ReplicaError::Cancelled),
        };
        Err(self.failed_alone(failure, &self.counters.read_timeouts, options))
    }

    /// The only replica of all mutations. `None` unless it is on this node, the level needs one
    /// response, and the request was planned with the newest metadata. None also if a table has a
    /// limit of writes and nothing has decided yet.
    #[inline]
    pub(super) fn only_replica_written(
        &self,
        metadata: &Metadata,
        mutations: &Mutations,
        options: &RequestOptions,
    ) -> Result<Option<TabletReplica>, CoordinatorError> {
        let mut only = None;
        if options.context.metadata_number != metadata.number {
            return Ok(None);
        }
        for (mutation, key) in mutations {
            let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
            if table.schema.rate_limits().limits_writes() && options.context.rate_limit == RateLimitMode::Off {
                return Ok(None);
            }
            let replica = table.tablets.only_replica(table.tablets.tablet_of(key.token), self.host);
            let is_same = only.is_none() || only == replica;
            if replica.is_none() || !is_same || !needs_one(metadata, table, options.consistency) {
                return Ok(None);
            }
            only = replica;
        }
        Ok(only)
    }

    /// The outcome of a write by the response of the only replica of its mutations.
    #[inline]
    pub(super) fn written_to_only(
        &self,
        response: Result<ReplicaResponse, ReplicaFailure>,
        options: &RequestOptions,
    ) -> Result<(), Attempt> {
        match response {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.failed_alone(failure, &self.counters.write_timeouts, options)),
        }
    }

    /// Why a request failed whose only replica did not perform it. Counts it.
    #[cold]
    fn failed_alone(&self, failure: ReplicaFailure, timeouts: &Cell<u64>, options: &RequestOptions) -> Attempt {
        if failure.is_stale() {
            return Attempt::Outdated { required: 1 };
        }
        let error = CoordinatorError::of_failure(failure, options.consistency, 1, None);
        if matches!(error, CoordinatorError::Timeout { .. }) {
            count(timeouts);
        }
        self.count_rate_limited(&error);
        error.into()
    }
}
