//! The only entry of a replica: requests from this shard, other shards and other nodes pass the
//! same stages.
//!
//! The first two rows are the work of whatever receives requests from elsewhere, before it calls
//! [`Replica::perform`].
//!
//! | stage | a read | a write |
//! |---|---|---|
//! | metadata | from elsewhere: waits for the metadata that routed it | the same |
//! | check | | from another node: refused if sstables cannot hold it ([`crate::wire`]) |
//! | deadline | refused after it | the same |
//! | shard | if the tablet changes it: waits, or refused ([`crate::shard_moves`]) | the same |
//! | fence | refused if routed by metadata below the fence | the same |
//! | rate limit | counted, perhaps refused ([`crate::rate_limit`]) | the same |
//! | protection | refused if hot, on an overloaded shard ([`crate::hot`]) | the same |
//! | admission | | refused by large-data guardrails |
//! | partition lock | | a write that reads first waits for others ([`crate::lock`]) |
//! | preparation | | a counter update becomes a new state ([`crate::counter`]), below the fence |
//! | work | a page ([`crate::read`]) or fragments ([`crate::fragments`]) | commitlog, memtable |
//! | charge | limited bytes, even if it fails ([`crate::rate_limiter`]) | unless it fails |
//! | shard, fence | checked again: the data may have moved | |
//!
//! A read takes its permit ([`crate::permit`]) at the beginning of its work: the reader of an
//! earlier page has kept one.

use crate::digest::Digester;
use crate::error::ReplicaError;
use crate::lock::PartitionLock;
use crate::rate_limit::WriteCharge;
use crate::replica::Replica;
use crate::request::{Compared, Context, KeyedMutation, Mutations, ReadCommand, ReplicaRequest, ReplicaResponse};
use bytes::Bytes;
use std::future::{Future, poll_fn};
use std::pin::pin;

/// A write whose mutations are ready for the commitlog.
enum Prepared<'a> {
    /// The mutations of the request as they are.
    AsSent(&'a [KeyedMutation]),
    /// The mutations that this replica made of the request's one. The first of them is also the
    /// answer: other replicas store it unchanged.
    Made(Box<Mutations>),
}

impl Prepared<'_> {
    fn mutations(&self) -> &[KeyedMutation] {
        match self {
            Prepared::AsSent(mutations) => mutations,
            Prepared::Made(made) => made,
        }
    }

    fn answer(self) -> ReplicaResponse {
        match self {
            Prepared::AsSent(_) => ReplicaResponse::Written,
            Prepared::Made(made) => {
                let (state, _) = made.into_iter().next().expect("a prepared write has a mutation");
                ReplicaResponse::CounterUpdated(state)
            }
        }
    }
}

impl Replica {
    /// Performs a request, unless its deadline, the fence or a guardrail forbids it. A write is
    /// answered when it is as durable as the commitlog's mode requires. Dropping the future stops
    /// the work at its next yield.
    ///
    /// # Errors
    ///
    /// See [`ReplicaError`].
    #[inline]
    pub async fn perform(&self, request: &ReplicaRequest, context: &Context) -> Result<ReplicaResponse, ReplicaError> {
        // Pinned, so that this large future is not moved.
        let mut work = pin!(self.pass_stages(request, context));
        let mut sample = self.begin_sample(context);
        // One place polls the work, sampled or not, so that the compiler inlines it here.
        let result = poll_fn(|task| {
            let began = sample.is_some().then(rt::time::now);
            let polled = work.as_mut().poll(task);
            if let (Some(sample), Some(began)) = (&mut sample, began) {
                sample.add(began);
            }
            polled
        })
        .await;
        if let (Some(sample), Ok(answer)) = (sample, &result) {
            self.add_sample(request, answer, sample);
        }
        result
    }

    /// Checks the deadline, the tablet's shard, the fence, the rate limit and the overload
    /// protection, then reads or writes.
    async fn pass_stages(&self, request: &ReplicaRequest, context: &Context) -> Result<ReplicaResponse, ReplicaError> {
        if context.deadline.is_past() {
            return Err(ReplicaError::Timeout);
        }
        if self.engine.moves_between_shards() {
            // Boxed: it must not enlarge the future of all other requests.
            Box::pin(self.tablets_are_here(request, context)).await?;
        }
        self.check_fence(request, context)?;
        if context.rate_limit.is_limited() {
            self.check_rate_limit(request, context)?;
        }
        if self.hot.decides() {
            self.check_protection(request, context)?;
        }
        if let ReplicaRequest::Read(command) = request {
            let mut charge = self.read_charge(command, context);
            let page = self.read(command, context, None, charge.as_deref_mut()).await?;
            drop(charge);
            self.check_unmoved(request, context)?;
            return Ok(ReplicaResponse::Page(page));
        }
        if let Some((command, compared)) = request.to_compare() {
            // Boxed: it must not enlarge the futures of plain reads and writes.
            let answer = Box::pin(self.read_to_compare(command, compared, context)).await?;
            self.check_unmoved(request, context)?;
            return Ok(answer);
        }
        self.admit_write(request.mutations(), context)?;
        let _lock = self.lock_partition(request).await?;
        let prepared = self.prepare(request, context).await?;
        let is_charged = context.rate_limit.is_limited();
        let mut charge = is_charged.then(|| WriteCharge::new(self, prepared.mutations(), context));
        let appended = self.append(prepared.mutations(), context).await;
        if let (Some(charge), Err(_)) = (&mut charge, &appended) {
            charge.cancel();
        }
        drop(charge);
        appended?;
        Ok(prepared.answer())
    }

    /// Performs a read whose answer is compared with those of other replicas.
    async fn read_to_compare(
        &self,
        command: &ReadCommand,
        compared: Compared,
        context: &Context,
    ) -> Result<ReplicaResponse, ReplicaError> {
        if compared == Compared::Fragments {
            return self.read_fragments(command, context).await.map(|part| ReplicaResponse::Fragments(part.into()));
        }
        let schema = self.engine.schema(command.table).ok_or(ReplicaError::NoSuchTable)?;
        let mut digester = Digester::new(&schema, command.now);
        let is_digest = compared == Compared::Digest;
        let mut charge = if is_digest { None } else { self.read_charge(command, context) };
        let mut page = self.read(command, context, Some(&mut digester), charge.as_deref_mut()).await?;
        if is_digest {
            page.body = Bytes::new();
        }
        Ok(ReplicaResponse::Digested(page, digester.finish()))
    }

    /// Locks the partition of a write that reads it first.
    async fn lock_partition(&self, request: &ReplicaRequest) -> Result<Option<PartitionLock<'_>>, ReplicaError> {
        match request {
            ReplicaRequest::CounterUpdate(counted) => {
                Box::pin(self.locks.lock(counted.0.table(), &counted.1)).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Prepares the mutations of a write. A counter update is replaced by the new state, after its
    /// partition has been read.
    async fn prepare<'a>(&self, request: &'a ReplicaRequest, context: &Context) -> Result<Prepared<'a>, ReplicaError> {
        let ReplicaRequest::CounterUpdate((mutation, key)) = request else {
            return Ok(Prepared::AsSent(request.mutations()));
        };
        let state = Box::pin(self.update_counter(mutation, key, context)).await?;
        // The data that was read may have been truncated since. Its sum must not return with the
        // new state.
        self.check_fence(request, context)?;
        Ok(Prepared::Made(Box::new(Mutations::from_iter([(state, key.clone())]))))
    }
}
