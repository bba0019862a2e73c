//! The receiver of a session: pulls the files of a tablet from its sources.

use crate::message::{PinResponse, Request, TabletSession};
use crate::metrics::{Counters, add};
use crate::settings::Settings;
use crate::source::MOST_BYTES;
use bytes::Bytes;
use cluster::ClusterShards;
use cluster::tablets::TabletReplica;
use engine::streaming::{ArrivedSource, AttachedFiles, Direction, Incoming, StreamTarget};
use engine::{Engine, EngineError};
use futures_util::{StreamExt, stream};
use internode::{CallError, Peer, RefusalCode, Verb};
use model::id::HostId;
use rt::ShardId;
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
const _: () = assert!(0 < CHUNK && CHUNK <= MOST_BYTES, "a source refuses longer answers");
/// Requests in flight to one source.
const WINDOW: usize = 6;
/// How long a source may take to flush and pin a tablet.
const PIN: Duration = Duration::from_secs(600);
/// How long a source may take to send a chunk. Its throttle may have it wait.
const READ: Duration = Duration::from_secs(3600);

/// Why an attempt failed.
#[derive(Debug, Error)]
pub(crate) enum ReceiveError {
    /// A source did not answer, or refused.
    #[error("node {0}: {1}")]
    Source(HostId, CallError),
    /// A source has answered something else.
    #[error("node {0} sent an invalid response: {1}")]
    Answer(HostId, String),
    /// The data of a source is damaged.
    #[error("the tablet is damaged on node {0}: {1}")]
    Damaged(HostId, String),
    /// The files could not be stored.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// The tablet must not be received any more, or not yet.
    #[error("{0}")]
    Refused(String),
    /// The tablet must be streamed as mutations, for this reason.
    #[error("{0}")]
    OnlyAsMutations(String),
}

/// The tablets that a shard receives.
pub(crate) struct Receiver {
    shards: ClusterShards,
    pub counters: Rc<Counters>,
    pub settings: Rc<Settings>,
    /// What earlier attempts have received, by session, source and epoch.
    arrived: RefCell<BTreeMap<(Uuid, HostId, u64), Incoming>>,
}

impl Receiver {
    pub fn new(shards: ClusterShards, counters: Rc<Counters>, settings: Rc<Settings>) -> Receiver {
        Receiver { shards, counters, settings, arrived: RefCell::default() }
    }

    /// Receives a tablet from all of these sources, and makes it readable on this shard.
    pub async fn receive(&self, what: TabletSession, from: &[TabletReplica]) -> Result<AttachedFiles, ReceiveError> {
        self.check(&what)?;
        let target = target_of(&what);
        let engine = self.shards.engine.get();
        if engine.is_attached(target).await? {
            return Ok(AttachedFiles::default());
        }
        let _streaming = engine.begin_streaming();
        let mut all = Vec::new();
        for source in from {
            all.push(self.receive_from(&what, *source).await?);
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

    /// Prepares the move of a tablet from another shard of this node: the files stay where they
    /// are. What is flushed now need not be flushed when the shard hands the tablet over, while
    /// requests wait.
    pub async fn flush_on_shard(&self, what: TabletSession, source: TabletReplica) -> Result<(), ReceiveError> {
        self.check(&what)?;
        let (shard, engines) = (ShardId(source.shard), self.shards.engine);
        let prepared = Engine::prepare_hand_over(shard, engines, what.table, what.tablet).await;
        if let Err(error) = &prepared {
            self.counters.streams.begin(&what, Direction::In, source.host, Some((0, 0)));
            self.counters.streams.failed(what.session, &error.to_string());
        }
        Ok(prepared?)
    }

    async fn receive_from(&self, what: &TabletSession, source: TabletReplica) -> Result<ArrivedSource, ReceiveError> {
        let pulled = match self.settings.whole_files.get() {
            true => self.pull(what, source).await,
            false => Err(ReceiveError::OnlyAsMutations("enable_file_stream is false".to_owned())),
        };
        let why = match pulled {
            Err(ReceiveError::OnlyAsMutations(why)) => why,
            pulled => return Ok(pulled?.finish().await?),
        };
        if self.counters.streams.begin(what, Direction::In, source.host, None) {
            tracing::info!(session = %what.session, table_id = %what.table, tablet = what.tablet, source = %source.host,
                why, "a tablet is streamed as mutations");
        }
        // The files that have arrived are removed.
        let arrived = self.arrived.borrow_mut().remove(&(what.session, source.host, what.epoch));
        drop(arrived);
        self.receive_mutations(what, source).await
    }

    pub fn engine(&self) -> Rc<Engine> {
        self.shards.engine.get()
    }

    /// The session, with the number of the current metadata.
    pub fn now(&self, what: &TabletSession) -> TabletSession {
        TabletSession { number: self.shards.metadata.get().number(), ..*what }
    }

    /// Whether the session is still open.
    pub fn check(&self, what: &TabletSession) -> Result<(), ReceiveError> {
        what.check(&self.shards.metadata.get().current()).map_err(ReceiveError::Refused)
    }

    /// Pulls what is missing of the files of a source.
    async fn pull(&self, what: &TabletSession, source: TabletReplica) -> Result<Incoming, ReceiveError> {
        let place = (what.session, source.host, what.epoch);
        let kept = self.arrived.borrow_mut().remove(&place);
        let sstables = match self.pin(self.now(what), source).await {
            Ok(PinResponse::Files(sstables)) => sstables,
            Ok(PinResponse::OnlyAsMutations(why)) => return Err(ReceiveError::OnlyAsMutations(why)),
            Err(error) => {
                // The data that has arrived is still valid.
                if let Some(kept) = kept {
                    self.arrived.borrow_mut().insert(place, kept);
                }
                return Err(error);
            }
        };
        let mut incoming = match kept {
            Some(kept) if kept.is_of(&sstables) => kept,
            _ => self.engine().receive(target_of(what), source.host, &sstables).await?,
        };
        let files = (sstables.len() as u64, incoming.layout().total());
        self.counters.streams.begin(what, Direction::In, source.host, Some(files));
        match self.pull_missing(what, source, &mut incoming).await {
            Ok(()) => Ok(incoming),
            Err(ReceiveError::Engine(error)) if error.is_damage() => {
                Err(ReceiveError::Damaged(source.host, error.to_string()))
            }
            Err(error @ ReceiveError::Engine(_)) => Err(error),
            Err(error) => {
                let other = self.arrived.borrow_mut().insert(place, incoming);
                assert!(other.is_none(), "one attempt at a time receives the files of session {}", what.session);
                Err(error)
            }
        }
    }

    async fn pin(&self, what: TabletSession, source: TabletReplica) -> Result<PinResponse, ReceiveError> {
        let answer = self.call(source, Request::Pin(what), PIN).await?;
        PinResponse::decode(&answer).map_err(|why| ReceiveError::Answer(source.host, why))
    }

    /// Pulls the missing chunks, several at a time, and stores them in order.
    async fn pull_missing(
        &self,
        what: &TabletSession,
        source: TabletReplica,
        incoming: &mut Incoming,
    ) -> Result<(), ReceiveError> {
        let missing = incoming.missing();
        let ends_before = |pair: &[Range<u64>]| pair[0].end < pair[1].start;
        assert!(missing.windows(2).all(ends_before), "missing ranges are in order, with arrived files between them");
        assert!(missing.last().is_none_or(|last| last.end <= incoming.layout().total()), "a range is of the files");
        let left = missing.iter().map(|range| range.end - range.start).sum();
        self.counters.streams.set_left(what.session, Direction::In, source.host, left);
        let chunks: Vec<Range<u64>> = missing.into_iter().flat_map(chunks).collect();
        let received = std::cell::Cell::new(incoming.durable_before());
        let reads = chunks.into_iter().map(|Range { start, end }| {
            let (session, epoch, received) = (what.session, what.epoch, &received);
            async move {
                self.settings.throttle.wait(end - start).await;
                let request = Request::Read { session, epoch, start, end, received: received.get() };
                let bytes = self.call(source, request, READ).await?;
                match bytes.len() as u64 == end - start {
                    true => Ok((start, bytes)),
                    false => Err(ReceiveError::Answer(source.host, format!("{} bytes", bytes.len()))),
                }
            }
        });
        let mut reads = stream::iter(reads).buffered(WINDOW);
        while let Some(read) = reads.next().await {
            let (start, bytes) = read?;
            self.check(what)?;
            assert_eq!(incoming.position(), start, "chunks are stored in the order of the files");
            add(&self.counters.incoming_bytes, bytes.len() as u64);
            self.counters.streams.add(what.session, Direction::In, source.host, bytes.len() as u64);
            incoming.push(bytes).await?;
            let durable = incoming.durable_before();
            assert!(
                (received.get()..=incoming.position()).contains(&durable),
                "what is durable grows, and has arrived"
            );
            received.set(durable);
        }
        Ok(())
    }

    pub async fn call(&self, to: TabletReplica, request: Request, within: Duration) -> Result<Bytes, ReceiveError> {
        let internode = self.shards.internode.try_get();
        let internode = internode.ok_or_else(|| ReceiveError::Refused("this node is alone".to_owned()))?;
        let peer = Peer { host: to.host, shard: to.shard };
        let answer = internode.call(peer, Verb::Stream, request.encode().into(), Deadline::after(within)).await;
        answer.map_err(|error| match error {
            CallError::Refused(refusal) if refusal.code == RefusalCode::Damaged => {
                ReceiveError::Damaged(to.host, refusal.text.to_string())
            }
            error => ReceiveError::Source(to.host, error),
        })
    }

    /// Drops a session that has ended. `sessions` removes its files.
    pub fn end(&self, session: Uuid) {
        let mut arrived = self.arrived.borrow_mut();
        let ended: Vec<Incoming> = arrived.extract_if(.., |(own, ..), _| *own == session).map(|(_, own)| own).collect();
        drop(arrived);
        drop(ended);
    }
}

pub(crate) fn target_of(what: &TabletSession) -> StreamTarget {
    let TabletSession { table, tablet, session, epoch, .. } = *what;
    StreamTarget { table, tablet, session, epoch }
}

/// Cuts a range into chunks.
fn chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    assert!(range.start <= range.end, "a range begins before it ends");
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
