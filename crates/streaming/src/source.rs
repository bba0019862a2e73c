//! The source of a session: pins the files of a tablet, and sends their bytes.

use crate::message::{HotKeys, PinResponse, TabletSession};
use crate::metrics::{Counters, add};
use crate::settings::Settings;
use cluster::ClusterShards;
use engine::EngineError;
use engine::streaming::{Direction, Pinned, Streaming};
use internode::{Caller, Refusal, RefusalCode};
use model::id::{HostId, TableId};
use rt::Pieces;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use uuid::Uuid;

/// The maximum number of bytes of one answer.
pub(crate) const MOST_BYTES: u64 = 8 << 20;
/// The maximum number of bytes of the keys of hot rows.
const MOST_KEY_BYTES: usize = 1 << 20;

#[derive(Clone)]
struct PinnedTablet {
    table: TableId,
    /// The epoch of the table.
    epoch: u64,
    files: Rc<Pinned>,
    _streaming: Rc<Streaming>,
}

/// The pinned tablets of a shard.
pub(crate) struct Source {
    shards: ClusterShards,
    counters: Rc<Counters>,
    settings: Rc<Settings>,
    /// By session.
    pinned: RefCell<BTreeMap<Uuid, PinnedTablet>>,
}

impl Source {
    pub fn new(shards: ClusterShards, counters: Rc<Counters>, settings: Rc<Settings>) -> Source {
        Source { shards, counters, settings, pinned: RefCell::default() }
    }

    /// Pins the files of a tablet. The work continues if the caller stops waiting, because files
    /// that it makes after the end of the session must be removed.
    pub async fn pin(self: &Rc<Self>, what: TabletSession, caller: &Caller) -> Result<PinResponse, Refusal> {
        let service = self.shards.metadata.get();
        if !service.wait_for_number(what.number, caller.deadline).await {
            let why = format!("this node has not applied metadata {} yet", what.number);
            return Err(Refusal::new(RefusalCode::Late, why));
        }
        what.check(&service.current()).map_err(Refusal::failed)?;
        let (own, receiver) = (self.clone(), caller.host);
        let pinning = rt::task::spawn(async move {
            let answer = own.pin_files(what, receiver).await;
            match what.check(&own.shards.metadata.get().current()) {
                Ok(()) => answer,
                Err(why) => {
                    own.remove_files(&what).await;
                    Err(Refusal::failed(why))
                }
            }
        });
        pinning.await.unwrap_or_else(|_| Err(Refusal::failed("this node is stopping")))
    }

    async fn pin_files(&self, what: TabletSession, receiver: HostId) -> Result<PinResponse, Refusal> {
        if !self.settings.whole_files.get() {
            return self.refuse_files(&what, "enable_file_stream is false on the source".to_owned()).await;
        }
        let engine = self.shards.engine.get();
        let pinned = match engine.pin_tablet(what.table, what.tablet, what.session, what.epoch).await {
            Err(error @ EngineError::OnlyAsMutations { .. }) => {
                return self.refuse_files(&what, error.to_string()).await;
            }
            pinned => pinned.map_err(refusal)?,
        };
        what.check(&self.shards.metadata.get().current()).map_err(Refusal::failed)?;
        let sstables = pinned.sstables().to_vec();
        let TabletSession { table, epoch, .. } = what;
        let bytes = pinned.layout().total();
        let own = PinnedTablet { table, epoch, files: pinned, _streaming: Rc::new(engine.begin_streaming()) };
        let known = self.pinned.borrow_mut().insert(what.session, own);
        // The session was checked since, and the epochs of a table only grow.
        assert!(
            known.as_ref().is_none_or(|known| known.table == table && known.epoch <= epoch),
            "session {} is of one table, whose epoch is {epoch}",
            what.session
        );
        let files = Some((sstables.len() as u64, bytes));
        self.counters.streams.begin(&what, Direction::Out, receiver, files);
        // Each attempt of the receiver asks again.
        if known.is_none_or(|known| known.epoch != epoch) {
            tracing::info!(session = %what.session, table_id = %table, tablet = what.tablet, sstables = sstables.len(), bytes,
                "the files of a tablet are pinned for another node");
        }
        Ok(PinResponse::Files(sstables))
    }

    /// Removes the files of a session that has ended, unless its table was truncated: then the
    /// session is still open.
    async fn remove_files(&self, what: &TabletSession) {
        let (schema, is_open) = {
            let metadata = self.shards.metadata.get().current();
            let table = metadata.table_by_id(what.table).map(|table| table.schema.clone());
            (table, metadata.session_is_open(what.session))
        };
        if let Some(schema) = schema.filter(|_| !is_open)
            && let Err(error) = self.shards.engine.get().remove_session(&schema, what.session).await
        {
            tracing::warn!(session = %what.session, %error, "the pinned files of a tablet cannot be removed before the next start");
        }
    }

    /// Removes what was pinned for the session.
    async fn refuse_files(&self, what: &TabletSession, why: String) -> Result<PinResponse, Refusal> {
        self.end(what.session);
        self.unpin(what.table, what.session, what.epoch).await;
        Ok(PinResponse::OnlyAsMutations(why))
    }

    async fn unpin(&self, table: TableId, session: Uuid, epoch: u64) {
        if let Err(error) = self.shards.engine.get().unpin_tablet(table, session, epoch).await {
            tracing::warn!(%session, %error, "the pinned files of a tablet cannot be removed before the session ends");
        }
    }

    /// Reads a range of files that are pinned for a session and an epoch.
    pub async fn read(
        &self,
        (session, epoch): (Uuid, u64),
        range: Range<u64>,
        received: u64,
        receiver: HostId,
    ) -> Result<Pieces, Refusal> {
        let known = self.pinned.borrow().get(&session).filter(|own| own.epoch == epoch).cloned();
        let known = known.ok_or_else(|| Refusal::failed(format!("session {session} has no files here")))?;
        let PinnedTablet { table, files: pinned, .. } = known;
        if range.start >= range.end || range.end > pinned.layout().total() || range.end - range.start > MOST_BYTES {
            return Err(Refusal::malformed("no such range of the files"));
        }
        pinned.release_before(received.min(range.start)).await.map_err(Refusal::failed)?;
        self.settings.throttle.wait(range.end - range.start).await;
        let wanted = range.end - range.start;
        let bytes = match pinned.read(range).await {
            Ok(bytes) => bytes,
            Err(error) => {
                // The files may be gone or damaged. The next attempt pins the tablet again.
                self.end(session);
                self.unpin(table, session, epoch).await;
                return Err(refusal(error));
            }
        };
        assert_eq!(bytes.len() as u64, wanted, "a range is read completely, or not at all");
        add(&self.counters.outgoing_bytes, bytes.len() as u64);
        self.counters.streams.add(session, Direction::Out, receiver, bytes.len() as u64);
        Ok(bytes)
    }

    /// The keys of a tablet whose rows are often read here.
    pub async fn hot_keys(&self, what: TabletSession) -> Result<HotKeys, Refusal> {
        what.check(&self.shards.metadata.get().current()).map_err(Refusal::failed)?;
        let keys = self.shards.engine.get().hot_keys(what.table, what.tablet, MOST_KEY_BYTES).await;
        Ok(HotKeys(keys.into_iter().map(Vec::from).collect()))
    }

    /// Drops a session that has ended. `sessions` removes its files.
    pub fn end(&self, session: Uuid) {
        let ended = self.pinned.borrow_mut().remove(&session);
        drop(ended);
    }
}

/// The refusal for an error of the tablet's files.
fn refusal(error: EngineError) -> Refusal {
    match error {
        EngineError::NotStreamable { .. } => Refusal::new(RefusalCode::Damaged, error),
        error => Refusal::failed(error),
    }
}
