//! The source of a tablet that is streamed as mutations: an ordinary reader of the tablet, kept
//! from page to page.
//!
//! While the receiver writes a page, the next one is read. A receiver that begins again opens
//! another reader, behind the partitions that it has.

use crate::message::TabletSession;
use crate::metrics::{Counters, add};
use crate::mutation_page::MutationPage;
use crate::settings::Settings;
use bytes::Bytes;
use cluster::ClusterShards;
use engine::streaming::{Direction, Streaming, TabletSize};
use engine::{ReadError, ReadOptions, Reader};
use internode::{Caller, Refusal, RefusalCode};
use model::id::HostId;
use model::key::{DecoratedKey, RingCut};
use model::range::Slice;
use rt::Pieces;
use rt::fs::IoClass;
use rt::task::Task;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use uuid::Uuid;

/// The weight of the fragments of a page, in bytes of memory. They are about half as long on the
/// wire.
const PAGE: usize = 2 << 20;

/// The tablets that a shard sends as mutations.
pub(crate) struct MutationSource {
    shards: ClusterShards,
    counters: Rc<Counters>,
    settings: Rc<Settings>,
    /// The last attempt of each receiver, by session.
    open: RefCell<BTreeMap<(Uuid, HostId), OpenReader>>,
}

/// A tablet that is being read.
struct OpenReader {
    attempt: Uuid,
    /// The next page, and its number. `None` while a page is being sent, or after the last one.
    next: Option<(u64, Task<Result<ReadPage, ReadError>>)>,
    _streaming: Streaming,
}

/// A page, and the reader of what follows it.
struct ReadPage {
    page: MutationPage,
    reader: Reader,
}

/// The part of a tablet that a receiver asks for.
pub(crate) struct Part {
    /// The tablet and the session.
    pub what: TabletSession,
    /// The receiver's attempt. Its pages are from one reader.
    pub attempt: Uuid,
    /// Page 0 begins behind this partition.
    pub after: Option<Bytes>,
    /// The number of the page.
    pub number: u64,
}

impl MutationSource {
    pub fn new(shards: ClusterShards, counters: Rc<Counters>, settings: Rc<Settings>) -> MutationSource {
        MutationSource { shards, counters, settings, open: RefCell::default() }
    }

    /// Reads a page. Page 0 begins an attempt, which ends earlier ones of the receiver. The others
    /// must be asked for in order, each once.
    pub async fn read(&self, part: Part, caller: &Caller) -> Result<Pieces, Refusal> {
        let Part { what, attempt, after, number } = part;
        let service = self.shards.metadata.get();
        if !service.wait_for_number(what.number, caller.deadline).await {
            let why = format!("this node has not applied metadata {} yet", what.number);
            return Err(Refusal::new(RefusalCode::Late, why));
        }
        what.check(&service.current()).map_err(Refusal::failed)?;
        let place = (what.session, caller.host);
        let next = match number {
            0 => {
                let _streaming = self.shards.engine.get().begin_streaming();
                self.open.borrow_mut().insert(place, OpenReader { attempt, next: None, _streaming });
                self.begin(what, after, caller.host).await?
            }
            _ => self.next(place, attempt, number)?,
        };
        let read = next.await.map_err(|_| Refusal::failed("this node is stopping"))?;
        let code = |error: &ReadError| if error.is_damage() { RefusalCode::Damaged } else { RefusalCode::Failed };
        let ReadPage { page, reader } = read.map_err(|error| Refusal::new(code(&error), error))?;
        // The reader may have been opened before the table was truncated.
        what.check(&service.current()).map_err(Refusal::failed)?;
        if !page.is_last
            && let Some(open) = self.open.borrow_mut().get_mut(&place).filter(|open| open.attempt == attempt)
        {
            open.next = Some((number + 1, rt::task::spawn(read_page(reader, page.estimate))));
        }
        let bytes = page.encode();
        self.settings.throttle.wait(bytes.len() as u64).await;
        add(&self.counters.outgoing_bytes, bytes.len() as u64);
        self.counters.streams.add(what.session, Direction::Out, caller.host, bytes.len() as u64);
        Ok(bytes)
    }

    /// Opens a reader. First the tablet is flushed: a reader of a memtable would keep its memory.
    async fn begin(
        &self,
        what: TabletSession,
        after: Option<Bytes>,
        receiver: HostId,
    ) -> Result<Task<Result<ReadPage, ReadError>>, Refusal> {
        let engine = self.shards.engine.get();
        engine.flush_one_tablet(what.table, what.tablet).await.map_err(Refusal::failed)?;
        let mut range = {
            let metadata = self.shards.metadata.get().current();
            what.check(&metadata).map_err(Refusal::failed)?;
            let known = metadata.table_by_id(what.table).ok_or_else(|| Refusal::failed("the table was dropped"))?;
            known.tablets.range(what.tablet)
        };
        if let Some(after) = after {
            range.start = RingCut::after_key(&DecoratedKey::new(after));
        }
        if engine.epoch(what.table) != what.epoch {
            return Err(Refusal::failed("the table is being truncated"));
        }
        let options =
            ReadOptions { class: IoClass::Background, fill_cache: false, bypass: true, ..ReadOptions::default() };
        let reader = engine.reader(what.table, range, Rc::new(Slice::full()), options).map_err(Refusal::failed)?;
        // A reader of a tablet that is not here would find nothing.
        let estimate = engine.size_of_tablet(what.table, what.tablet);
        let estimate = estimate.ok_or_else(|| Refusal::failed("the tablet is not on this shard"))?;
        if self.counters.streams.begin(&what, Direction::Out, receiver, None) {
            let TabletSize { partitions, bytes } = estimate;
            tracing::info!(session = %what.session, table_id = %what.table, tablet = what.tablet, partitions, bytes,
                "streaming a tablet to another node as mutations");
        }
        Ok(rt::task::spawn(read_page(reader, estimate)))
    }

    /// Takes the page that was read ahead.
    fn next(
        &self,
        place: (Uuid, HostId),
        attempt: Uuid,
        number: u64,
    ) -> Result<Task<Result<ReadPage, ReadError>>, Refusal> {
        let mut all = self.open.borrow_mut();
        let open = all.get_mut(&place).filter(|open| open.attempt == attempt);
        match open.and_then(|open| open.next.take()) {
            Some((next, page)) if next == number => Ok(page),
            _ => Err(Refusal::failed(format!("session {} has no such page here", place.0))),
        }
    }

    /// Drops a session that has ended.
    pub fn end(&self, session: Uuid) {
        let mut open = self.open.borrow_mut();
        let ended: Vec<OpenReader> = open.extract_if(.., |(own, _), _| *own == session).map(|(_, own)| own).collect();
        drop(open);
        drop(ended);
    }
}

async fn read_page(mut reader: Reader, estimate: TabletSize) -> Result<ReadPage, ReadError> {
    let (mut fragments, mut weight) = (Vec::new(), 0);
    let is_last = 'read: loop {
        while let Some(fragment) = reader.pop() {
            weight += fragment.weight();
            fragments.push(fragment);
            if weight >= PAGE {
                break 'read false;
            }
        }
        rt::task::maybe_yield().await;
        if !reader.advance().await? {
            break true;
        }
    };
    let page = MutationPage { is_last, schema: reader.schema().version, estimate, fragments };
    Ok(ReadPage { page, reader })
}
