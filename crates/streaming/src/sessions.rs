//! The streaming service of a shard, and the end of sessions.

use crate::message::{Request, TabletSession};
use crate::metrics::{Counters, StreamMetrics, add};
use crate::mutation_source::{MutationSource, Part};
use crate::progress::StreamProgress;
use crate::receiver::{ReceiveError, Receiver};
use crate::settings::{Settings, StreamSettings};
use crate::source::Source;
use bytes::Bytes;
use cluster::ClusterShards;
use cluster::metadata::Metadata;
use cluster::tablets::TabletReplica;
use cluster::topology::migration_driver::StreamError;
use engine::EngineError;
use engine::streaming::AttachedFiles;
use internode::{Caller, Internode, Refusal, RefusalCode, Verb};
use model::schema::TableSchema;
use rt::shard::PerShard;
use rt::sync::{Cancel, Deadline};
use rt::task::{Group, Task};
use rt::{Pieces, ShardId, Throttle};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Streams the tablets of one shard.
pub struct StreamService {
    shards: ClusterShards,
    counters: Rc<Counters>,
    settings: Rc<Settings>,
    source: Rc<Source>,
    mutations: MutationSource,
    receiver: Rc<Receiver>,
    /// The tablets that are being received, by session.
    running: RefCell<BTreeMap<Uuid, Rc<Receiving>>>,
}

/// A running attempt. Several requests may wait for it.
struct Receiving {
    result: RefCell<Option<Result<AttachedFiles, StreamError>>>,
    ended: Cancel,
    task: RefCell<Option<Task<()>>>,
}

impl StreamService {
    /// The service of this shard.
    fn new(shards: ClusterShards, settings: Settings) -> Rc<StreamService> {
        let (counters, settings): (Rc<Counters>, _) = (Rc::default(), Rc::new(settings));
        let source = Rc::new(Source::new(shards, counters.clone(), settings.clone()));
        let mutations = MutationSource::new(shards, counters.clone(), settings.clone());
        let receiver = Rc::new(Receiver::new(shards, counters.clone(), settings.clone()));
        Rc::new(StreamService { shards, counters, settings, source, mutations, receiver, running: RefCell::default() })
    }

    /// Changes the settings of this shard.
    pub fn set(&self, settings: StreamSettings) {
        self.settings.set(settings);
    }

    /// The counters so far.
    pub fn metrics(&self) -> StreamMetrics {
        self.counters.read()
    }

    /// The tablets that this shard sends or receives now.
    pub fn progress(&self) -> Vec<StreamProgress> {
        self.counters.streams.list()
    }

    /// Answers requests of other nodes.
    fn serve(self: &Rc<Self>, internode: &Internode) {
        let service = self.clone();
        internode.serve(Verb::Stream, move |caller, body| {
            let service = service.clone();
            async move { service.answer(caller, body).await }
        });
    }

    async fn answer(&self, caller: Caller, body: Bytes) -> Result<Pieces, Refusal> {
        match Request::decode(&body).map_err(Refusal::malformed)? {
            Request::Receive { what, from } => {
                let received = self.receive(what, from, caller.deadline).await;
                received.map(|_| Pieces::default()).map_err(|StreamError { why, is_damage }| {
                    Refusal::new(if is_damage { RefusalCode::Damaged } else { RefusalCode::Failed }, why)
                })
            }
            Request::Pin(what) => {
                let pinned = self.source.pin(what, &caller).await?;
                let answer = postcard::to_stdvec(&pinned).map_err(Refusal::failed)?;
                Ok(Pieces::from(Bytes::from(answer)))
            }
            Request::Read { session, epoch, start, end, received } => {
                self.source.read((session, epoch), start..end, received, caller.host).await
            }
            Request::HotKeys(what) => {
                let keys = self.source.hot_keys(what).await?;
                let answer = postcard::to_stdvec(&keys).map_err(Refusal::failed)?;
                Ok(Pieces::from(Bytes::from(answer)))
            }
            Request::ReadMutations { what, attempt, after, number } => {
                self.mutations.read(Part { what, attempt, after: after.map(Bytes::from), number }, &caller).await
            }
        }
    }

    /// Receives a tablet on this shard. If the tablet is being received already, waits for that.
    /// The transfer continues if the caller stops waiting.
    pub async fn receive(
        &self,
        what: TabletSession,
        from: Vec<TabletReplica>,
        until: Deadline,
    ) -> Result<AttachedFiles, StreamError> {
        let service = self.shards.metadata.get();
        if !service.wait_for_number(what.number, until).await {
            return Err(format!("this node has not applied metadata {} yet", what.number).into());
        }
        if let [source] = from[..]
            && source.host == service.info().host_id
        {
            let flushing = self.receiver.flush_on_shard(what, source);
            let prepared = rt::task::in_group(Group::Maintenance, flushing).await;
            return prepared.map(|()| AttachedFiles::default()).map_err(|error| error.to_string().into());
        }
        let known = self.running.borrow().get(&what.session).cloned();
        let receiving = known.unwrap_or_else(|| self.begin(what, from));
        receiving.ended.cancelled().await;
        let result = receiving.result.borrow().clone();
        let is_own = |own: &Rc<Receiving>| Rc::ptr_eq(own, &receiving);
        let mut running = self.running.borrow_mut();
        if running.get(&what.session).is_some_and(is_own) {
            running.remove(&what.session);
        }
        result.unwrap_or_else(|| Err(format!("session {} has ended", what.session).into()))
    }

    fn begin(&self, what: TabletSession, from: Vec<TabletReplica>) -> Rc<Receiving> {
        let (result, ended) = (RefCell::default(), Cancel::new());
        let receiving = Rc::new(Receiving { result, ended, task: RefCell::default() });
        let other = self.running.borrow_mut().insert(what.session, receiving.clone());
        assert!(other.is_none(), "one attempt at a time receives the tablet of session {}", what.session);
        let (own, receiver, counters) = (receiving.clone(), self.receiver.clone(), self.counters.clone());
        let task = rt::task::spawn_in(Group::Maintenance, async move {
            let begun = rt::time::now();
            let received = receiver.receive(what, &from).await;
            match &received {
                Ok(AttachedFiles { sstables, bytes }) => {
                    tracing::info!(session = %what.session, table_id = %what.table, tablet = what.tablet, sstables, bytes,
                        took = ?begun.elapsed(), "a tablet has been received");
                    receiver.read_in_hot_rows(&what, &from).await;
                }
                Err(error) => {
                    add(&counters.failed_attempts, 1);
                    counters.streams.failed(what.session, &error.to_string());
                }
            }
            let earlier = own.result.replace(Some(received.map_err(|error| StreamError {
                why: error.to_string(),
                is_damage: matches!(error, ReceiveError::Damaged(..)),
            })));
            assert!(earlier.is_none(), "an attempt ends once");
            own.ended.cancel();
        });
        receiving.task.replace(Some(task));
        receiving
    }

    /// Cancels the work of sessions that have ended, and drops the data that they have received or
    /// pinned.
    async fn end(&self, sessions: &[Uuid]) {
        for &session in sessions {
            let receiving = self.running.borrow_mut().remove(&session);
            if let Some(receiving) = receiving {
                let task = receiving.task.take();
                if let Some(task) = task {
                    task.abort();
                    let _ = task.await;
                }
                receiving.ended.cancel();
            }
            self.receiver.end(session);
            self.counters.streams.end(session);
            self.source.end(session);
            self.mutations.end(session);
        }
    }
}

/// Starts the streaming services of all shards. First removes the files of sessions that have ended
/// while the node was down. To be called on shard 0, with the metadata and the transport set.
pub async fn start(shards: ClusterShards, services: PerShard<StreamService>, settings: StreamSettings) {
    assert_eq!(rt::shard::this(), ShardId(0), "one shard starts the services of all");
    let metadata = shards.metadata.get().current();
    // Before anything waits: sessions that end from now on are ended here, the others are swept.
    shards.metadata.get().on_change(move |before, now| {
        let ended = ended_sessions(before, now);
        if !ended.is_empty() {
            rt::task::spawn_in(Group::Maintenance, end(shards, services, ended)).detach();
        }
    });
    for table in metadata.tables() {
        let swept =
            shards.engine.get().sweep_sessions(&table.schema, |session| metadata.session_is_open(session)).await;
        warn_of(swept.map(drop));
    }
    drop(metadata);
    let throttle = Arc::new(Throttle::new());
    let set = move || {
        let throttle = throttle.clone();
        async move {
            let service = StreamService::new(shards, Settings { whole_files: Cell::new(true), throttle });
            service.set(settings);
            if let Some(internode) = shards.internode.try_get() {
                service.serve(&internode);
            }
            services.set(service);
        }
    };
    rt::shard::call_all(set).await;
}

/// Sessions with the schemas of their tables.
type Sessions = BTreeMap<Uuid, Rc<TableSchema>>;

/// The sessions that a change of the metadata has ended.
fn ended_sessions(before: &Metadata, now: &Metadata) -> Sessions {
    let sessions = before.transitions().filter_map(|(table, _, moving)| Some((moving.session?, table.schema.clone())));
    sessions.filter(|(session, _)| !now.session_is_open(*session)).collect()
}

/// Ends sessions on all shards, and removes their files.
async fn end(shards: ClusterShards, services: PerShard<StreamService>, ended: Sessions) {
    let sessions: Vec<Uuid> = ended.keys().copied().collect();
    let called = rt::shard::call_all(move || {
        // While the node starts or stops, there is none.
        let (service, sessions) = (services.try_get(), sessions.clone());
        async move {
            if let Some(service) = service {
                service.end(&sessions).await;
            }
        }
    });
    called.await;
    let Some(engine) = shards.engine.try_get() else { return };
    for (session, schema) in ended {
        warn_of(engine.remove_session(&schema, session).await);
    }
}

/// A failure is only logged: the files take up space and do no harm, and the next start removes
/// them.
fn warn_of(removed: Result<(), EngineError>) {
    if let Err(error) = removed {
        tracing::warn!(%error, "the files of an ended streaming session cannot be removed before the next start");
    }
}
