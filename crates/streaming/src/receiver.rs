//! The receiver of a session: pulls the files of a tablet from its sources.

use crate::message::{Request, TabletSession};
use crate::metrics::{Counters, add};
use bytes::Bytes;
use cluster::ClusterShards;
use cluster::tablets::TabletReplica;
use engine::EngineError;
use engine::streaming::{AttachedFiles, Incoming, StreamTarget, StreamedSstable};
use futures_util::{StreamExt, stream};
use internode::{CallError, Peer, Verb};
use model::id::HostId;
use rt::sync::Deadline;
use rt::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use thiserror::Error;
use uuid::Uuid;

/// Bytes of one request.
const CHUNK: u64 = 1 << 20;
/// Requests in flight to one source.
const WINDOW: usize = 4;
/// How long a source may take to flush and pin a tablet.
const PIN: Duration = Duration::from_secs(600);
/// How long a source may take to send a chunk.
const READ: Duration = Duration::from_secs(30);

/// Why an attempt failed.
#[derive(Debug, Error)]
pub(crate) enum ReceiveError {
    /// A source did not answer, or refused.
    #[error("node {0}: {1}")]
    Source(HostId, CallError),
    /// A source has answered something else.
    #[error("node {0} has answered {1}")]
    Answer(HostId, String),
    /// The files could not be stored, or are damaged.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// The tablet must not be received any more, or not yet.
    #[error("{0}")]
    Refused(String),
}

/// The tablets that a shard receives.
pub(crate) struct Receiver {
    shards: ClusterShards,
    counters: Rc<Counters>,
    /// What earlier attempts have received, by session, source and epoch.
    arrived: RefCell<BTreeMap<(Uuid, HostId, u64), Incoming>>,
}

impl Receiver {
    pub fn new(shards: ClusterShards, counters: Rc<Counters>) -> Receiver {
        Receiver { shards, counters, arrived: RefCell::default() }
    }

    /// Receives a tablet from all of these sources, and makes it readable on this shard.
    pub async fn receive(&self, what: TabletSession, from: &[TabletReplica]) -> Result<AttachedFiles, ReceiveError> {
        self.check(&what)?;
        let target = target_of(&what);
        let engine = self.shards.engine.get();
        if engine.is_attached(target).await? {
            return Ok(AttachedFiles::default());
        }
        let mut all = Vec::new();
        for source in from {
            let mut incoming = self.pull(&what, *source).await?;
            incoming.finish().await?;
            all.push(incoming);
        }
        // Holds the metadata until the files are attached: the barrier at the session's end waits
        // for that.
        let service = self.shards.metadata.get();
        let enter = move || {
            let metadata = service.current();
            what.check(&metadata).map(|()| metadata)
        };
        let attached = engine.attach_streamed(target, all, enter).await?;
        add(&self.counters.received_tablets, 1);
        Ok(attached)
    }

    fn check(&self, what: &TabletSession) -> Result<(), ReceiveError> {
        what.check(&self.shards.metadata.get().current()).map_err(ReceiveError::Refused)
    }

    /// Pulls what is missing of the files of a source.
    async fn pull(&self, what: &TabletSession, source: TabletReplica) -> Result<Incoming, ReceiveError> {
        let place = (what.session, source.host, what.epoch);
        let kept = self.arrived.borrow_mut().remove(&place);
        let (engine, number) = (self.shards.engine.get(), self.shards.metadata.get().number());
        let sstables = match self.pin(TabletSession { number, ..*what }, source).await {
            Ok(sstables) => sstables,
            Err(error) => {
                // What has arrived is still valid.
                if let Some(kept) = kept {
                    self.arrived.borrow_mut().insert(place, kept);
                }
                return Err(error);
            }
        };
        let mut incoming = match kept {
            Some(kept) if kept.is_of(&sstables) => kept,
            _ => engine.receive(target_of(what), source.host, &sstables).await?,
        };
        match self.pull_missing(what, source, &mut incoming).await {
            Ok(()) => Ok(incoming),
            Err(error @ ReceiveError::Engine(_)) => Err(error),
            Err(error) => {
                self.arrived.borrow_mut().insert(place, incoming);
                Err(error)
            }
        }
    }

    async fn pin(&self, what: TabletSession, source: TabletReplica) -> Result<Vec<StreamedSstable>, ReceiveError> {
        let answer = self.call(source, Request::Pin(what), PIN).await?;
        postcard::from_bytes(&answer).map_err(|error| ReceiveError::Answer(source.host, error.to_string()))
    }

    /// Pulls the missing chunks, several at a time, and stores them in order.
    async fn pull_missing(
        &self,
        what: &TabletSession,
        source: TabletReplica,
        incoming: &mut Incoming,
    ) -> Result<(), ReceiveError> {
        let chunks: Vec<Range<u64>> = incoming.missing().into_iter().flat_map(chunks).collect();
        let received = std::cell::Cell::new(incoming.durable_before());
        let reads = chunks.into_iter().map(|Range { start, end }| {
            let (session, epoch, received) = (what.session, what.epoch, &received);
            async move {
                let request = Request::Read { session, epoch, start, end, received: received.get() };
                let bytes = self.call(source, request, READ).await?;
                match bytes.len() as u64 == end - start {
                    true => Ok(bytes),
                    false => Err(ReceiveError::Answer(source.host, format!("{} bytes", bytes.len()))),
                }
            }
        });
        let mut reads = stream::iter(reads).buffered(WINDOW);
        while let Some(bytes) = reads.next().await {
            let bytes = bytes?;
            self.check(what)?;
            add(&self.counters.incoming_bytes, bytes.len() as u64);
            incoming.push(bytes).await?;
            received.set(incoming.durable_before());
        }
        Ok(())
    }

    async fn call(&self, to: TabletReplica, request: Request, within: Duration) -> Result<Bytes, ReceiveError> {
        let internode = self.shards.internode.try_get();
        let internode = internode.ok_or_else(|| ReceiveError::Refused("this node is alone".to_owned()))?;
        let peer = Peer { host: to.host, shard: to.shard };
        let answer = internode.call(peer, Verb::Stream, request.encode().into(), Deadline::after(within)).await;
        answer.map_err(|error| ReceiveError::Source(to.host, error))
    }

    /// Forgets a session that has ended. `sessions` removes its files.
    pub fn end(&self, session: Uuid) {
        let mut arrived = self.arrived.borrow_mut();
        let ended: Vec<Incoming> = arrived.extract_if(.., |(own, ..), _| *own == session).map(|(_, own)| own).collect();
        drop(arrived);
        drop(ended);
    }
}

fn target_of(what: &TabletSession) -> StreamTarget {
    let TabletSession { table, tablet, session, epoch, .. } = *what;
    StreamTarget { table, tablet, session, epoch }
}

/// Cuts a range into chunks.
fn chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = (range.start..range.end).step_by(CHUNK as usize);
    starts.map(move |start| start..range.end.min(start + CHUNK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_range() {
        let cut = |range| chunks(range).collect::<Vec<_>>();
        assert_eq!(cut(5..5), []);
        assert!(cut(5..6).into_iter().eq(std::iter::once(5..6)));
        assert_eq!(cut(7..7 + 2 * CHUNK + 1), [7..7 + CHUNK, 7 + CHUNK..7 + 2 * CHUNK, 7 + 2 * CHUNK..8 + 2 * CHUNK]);
    }
}
