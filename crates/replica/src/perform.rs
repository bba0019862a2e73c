//! The one entry of a replica: requests of this shard, of other shards and of other nodes pass the same stages.
//!
//! | stage | a read | a write |
//! |---|---|---|
//! | deadline | refused when it has passed | the same |
//! | fence | refused when routed by metadata that nobody may work with any more | the same |
//! | admission | waits for a permit ([`crate::permit`]) | refused by the large-data guardrails |
//! | partition lock | | a write that reads first waits for others of its partition ([`crate::lock`]) |
//! | preparation | | the mutations of the request become those that are written |
//! | work | a page ([`crate::read`]) or fragments ([`crate::fragments`]) | commitlog and memtable |
//! | fence | once more: the data may have moved while they were read | once more after a write has read |

use crate::digest::Digester;
use crate::error::ReplicaError;
use crate::lock::PartitionLock;
use crate::read::Replica;
use crate::request::{Answer, Compared, Context, KeyedMutation, ReadCommand, Request};
use bytes::Bytes;
use std::slice;

/// A write whose mutations are ready for the commitlog.
enum Prepared<'a> {
    /// The mutations of the request as they are.
    AsSent(&'a [KeyedMutation]),
    /// What this replica made of one of them. It is the answer as well: other replicas store it as it is.
    Made(Box<KeyedMutation>),
}

impl Prepared<'_> {
    fn mutations(&self) -> &[KeyedMutation] {
        match self {
            Prepared::AsSent(mutations) => mutations,
            Prepared::Made(made) => slice::from_ref(made),
        }
    }

    fn answer(self) -> Answer {
        match self {
            Prepared::AsSent(_) => Answer::Written,
            Prepared::Made(made) => Answer::Counted(made.0),
        }
    }
}

impl Replica {
    /// Performs a request, unless its deadline, the fence or a guardrail forbids it. Returns a write's answer when the write is as
    /// durable as the commitlog's mode promises. Dropping the future stops the work at its next yield.
    ///
    /// # Errors
    /// See [`ReplicaError`].
    pub async fn perform(&self, request: &Request, context: &Context) -> Result<Answer, ReplicaError> {
        if context.deadline.is_past() {
            return Err(ReplicaError::Timeout);
        }
        self.check_fence(request, context)?;
        if let Request::Read(command) = request {
            let page = self.read(command, context, None).await?;
            self.check_fence(request, context)?;
            return Ok(Answer::Page(page));
        }
        if let Some((command, compared)) = request.to_compare() {
            // Boxed: it must not make the futures of plain reads and of writes larger.
            let answer = Box::pin(self.read_to_compare(command, compared, context)).await?;
            self.check_fence(request, context)?;
            return Ok(answer);
        }
        self.admit_write(request.mutations(), context)?;
        let _lock = self.lock_partition(request).await?;
        let prepared = self.prepare(request, context).await?;
        self.append(prepared.mutations(), context).await?;
        Ok(prepared.answer())
    }

    /// What a coordinator compares with what other replicas have.
    async fn read_to_compare(
        &self,
        command: &ReadCommand,
        compared: Compared,
        context: &Context,
    ) -> Result<Answer, ReplicaError> {
        if compared == Compared::Fragments {
            return self.read_fragments(command, context).await.map(|part| Answer::Fragments(part.into()));
        }
        let schema = self.engine.schema(command.table).ok_or(ReplicaError::NoSuchTable)?;
        let mut digester = Digester::new(&schema, command.now);
        let mut page = self.read(command, context, Some(&mut digester)).await?;
        if compared == Compared::Digest {
            page.body = Bytes::new();
        }
        Ok(Answer::Digested(page, digester.finish()))
    }

    /// The lock on the partition of a write that reads it first.
    async fn lock_partition(&self, request: &Request) -> Result<Option<PartitionLock<'_>>, ReplicaError> {
        match request {
            Request::Count(counted) => Box::pin(self.locks.lock(counted.0.table(), &counted.1)).await.map(Some),
            _ => Ok(None),
        }
    }

    /// What a write request comes to: a mutation may be replaced by another one, after its partition has been read.
    async fn prepare<'a>(&self, request: &'a Request, context: &Context) -> Result<Prepared<'a>, ReplicaError> {
        let Request::Count((mutation, key)) = request else { return Ok(Prepared::AsSent(request.mutations())) };
        let state = Box::pin(self.count(mutation, key, context)).await?;
        // What was read may have been truncated meanwhile: its sum must not come back with the new state.
        self.check_fence(request, context)?;
        Ok(Prepared::Made(Box::new((state, key.clone()))))
    }
}
