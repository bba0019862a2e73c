//! What a coordinator needs to ask shards of other nodes, and the asking: the third distance.
//!
//! The transport is given from outside; without one, every other node is unreachable. Which nodes live and where they are comes as
//! snapshots ([`Nodes`]). Requests that outlive the one they were made for (writes to replicas that a level did not wait for) run as tasks of
//! their own and hold what they need.

use super::nodes::{Latencies, Nodes};
use super::speculation::{Histogram, Speculation};
use crate::hints::Hints;
use crate::metadata::{MetadataService, Table};
use crate::tablets::TabletReplica;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use model::id::{HostId, SchemaVersion, TableId};
use replica::wire::{Answer, Header, Pieces, Request, decode_response, encode_request};
use replica::{Context, Replica, ReplicaError};
use rt::ShardId;
use rt::hash::HashMap;
use rt::sync::Deadline;
use rt::time::{Duration, Instant};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// Why a replica's answer did not come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unreached {
    /// It was not asked: its node is down or refuses.
    Down(String),
    /// The connection was lost before the answer: it may have done what was asked.
    Lost(String),
    /// Its time ran out.
    TimedOut,
    /// The other node, or this one, refuses the message itself: sending it again would end the same
    /// way.
    Refused(String),
}

/// Carries requests to shards of other nodes.
pub trait Transport {
    /// Sends a request in its wire form and waits for the answer, which is in its wire form too. Dropping the future cancels.
    fn call(
        &self,
        to: TabletReplica,
        request: Bytes,
        deadline: Deadline,
    ) -> LocalBoxFuture<'static, Result<Bytes, Unreached>>;
}

/// Why a replica gave no answer that helps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Miss {
    /// It said why not.
    Refused(ReplicaError),
    /// Nothing came.
    Unreached(Unreached),
}

/// What a miss means for the error that the client gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MissClass {
    /// The replica did not get the request: it counts as a node that is down.
    NotSent,
    /// The replica got the request, or may have, and its answer did not come: a timeout.
    Unanswered,
    /// The replica answered that it failed. Only this is a failure for the client.
    Failed,
}

impl Miss {
    /// What it means for the error that the client gets.
    pub fn class(&self) -> MissClass {
        match self {
            Miss::Unreached(Unreached::Down(_)) => MissClass::NotSent,
            Miss::Unreached(Unreached::Lost(_) | Unreached::TimedOut) => MissClass::Unanswered,
            Miss::Refused(ReplicaError::Timeout) => MissClass::Unanswered,
            Miss::Unreached(Unreached::Refused(_)) | Miss::Refused(_) => MissClass::Failed,
        }
    }

    /// Whether the replica refused it because it was routed by outdated metadata.
    pub fn is_stale(&self) -> bool {
        matches!(self, Miss::Refused(ReplicaError::Stale(_)))
    }

    /// Whether the same write may well succeed later: what failed was not the write itself. `NoSuchTable` does not
    /// decide it: whether the table is gone for good, the metadata say.
    pub fn may_pass(&self) -> bool {
        match self {
            Miss::Unreached(unreached) => !matches!(unreached, Unreached::Refused(_)),
            Miss::Refused(error) => !matches!(error, ReplicaError::NoSuchTable | ReplicaError::Rejected(_)),
        }
    }

    /// What went wrong, for errors.
    pub fn why(&self) -> String {
        match self {
            Miss::Refused(error) => error.to_string(),
            Miss::Unreached(Unreached::Down(why) | Unreached::Lost(why) | Unreached::Refused(why)) => why.clone(),
            Miss::Unreached(Unreached::TimedOut) => ReplicaError::Timeout.to_string(),
        }
    }
}

/// A request to several replicas: encoded at most once.
pub(super) struct Message {
    pub request: Request,
    bytes: OnceCell<Bytes>,
}

impl Message {
    pub fn new(request: Request) -> Rc<Message> {
        Rc::new(Message { request, bytes: OnceCell::new() })
    }

    fn bytes(&self, context: &Context) -> Bytes {
        self.bytes.get_or_init(|| encode_request(&Header::of(context), &self.request)).clone()
    }
}

/// Has another shard of this node answer, once that knows the metadata by which it is asked: shards follow one after the other.
pub(super) async fn serve_on(shard: ShardId, bytes: Bytes, context: &Context) -> Pieces {
    let (number, deadline) = (context.metadata_number, context.deadline);
    let serve = move || async move {
        if let Some(metadata) = rt::shard::try_service::<MetadataService>()
            && metadata.number() < number
        {
            metadata.wait_for_number(number, deadline).await;
        }
        rt::shard::service::<Replica>().serve(bytes).await
    };
    rt::shard::call(shard, serve).await
}

struct TableTimes {
    version: SchemaVersion,
    speculation: Speculation,
    times: Histogram,
}

/// Tables whose reads' times are kept at most; beyond, those of all are forgotten.
const MAX_TIMED_TABLES: usize = 4096;

/// Bytes of writes on their way to replicas, beyond which new ones are refused.
pub(super) const MAX_BYTES_ON_THE_WAY: usize = 64 << 20;

/// What reaches beyond this shard.
pub(super) struct Far {
    pub host: HostId,
    replica: Rc<Replica>,
    transport: RefCell<Option<Rc<dyn Transport>>>,
    nodes: RefCell<Rc<Nodes>>,
    hints: RefCell<Option<Rc<Hints>>>,
    pub latencies: RefCell<Latencies>,
    times: RefCell<HashMap<TableId, TableTimes>>,
    /// Bytes of writes that replicas have not answered.
    pub on_the_way: Cell<usize>,
    /// Requests to other nodes.
    pub sent: Cell<u64>,
}

impl Far {
    pub fn new(host: HostId, replica: Rc<Replica>) -> Rc<Far> {
        Rc::new(Far {
            host,
            replica,
            transport: RefCell::new(None),
            nodes: RefCell::new(Rc::new(Nodes::new(host, &[]))),
            hints: RefCell::new(None),
            latencies: RefCell::default(),
            times: RefCell::default(),
            on_the_way: Cell::new(0),
            sent: Cell::new(0),
        })
    }

    pub fn nodes(&self) -> Rc<Nodes> {
        self.nodes.borrow().clone()
    }

    pub fn set_nodes(&self, nodes: Nodes) {
        *self.nodes.borrow_mut() = Rc::new(nodes);
    }

    pub fn set_transport(&self, transport: Rc<dyn Transport>) {
        *self.transport.borrow_mut() = Some(transport);
    }

    pub fn hints(&self) -> Option<Rc<Hints>> {
        self.hints.borrow().clone()
    }

    pub fn set_hints(&self, hints: Rc<Hints>) {
        *self.hints.borrow_mut() = Some(hints);
    }

    /// Has a replica do what a message asks for, at whatever distance.
    pub async fn ask(&self, to: TabletReplica, message: &Message, context: &Context) -> Result<Answer, Miss> {
        if to.host == self.host {
            return self.ask_here(ShardId(to.shard), message, context).await.map_err(Miss::Refused);
        }
        let transport = self.transport.borrow().clone();
        let Some(transport) = transport else {
            return Err(Miss::Unreached(Unreached::Down("there is no way to other nodes".into())));
        };
        self.sent.set(self.sent.get() + 1);
        let began = rt::time::now();
        let traced = context.trace.as_ref().map(|trace| {
            trace.event(format!("Sending a request to shard {} of node {}", to.shard, to.host));
            trace.elapsed_micros()
        });
        let answered = transport.call(to, message.bytes(context), context.deadline).await;
        if !matches!(answered, Err(Unreached::Down(_))) {
            self.latencies.borrow_mut().add(to.host, began.elapsed(), rt::time::coarse_now());
        }
        let response = decode_response(answered.map_err(Miss::Unreached)?);
        let mut response = response.map_err(|error| Miss::Refused(ReplicaError::Storage(error.to_string())))?;
        response.report_to(context, traced, self.nodes.borrow().address(to.host));
        response.result.map_err(Miss::Refused)
    }

    async fn ask_here(&self, shard: ShardId, message: &Message, context: &Context) -> Result<Answer, ReplicaError> {
        if shard == rt::shard::this() {
            return self.replica.perform(&message.request, context).await;
        }
        let bytes = message.bytes(context);
        let began = context.trace.as_ref().map(|trace| {
            trace.event(format!("Sending a request to shard {}", shard.0));
            trace.elapsed_micros()
        });
        let answer = serve_on(shard, bytes, context).await;
        let mut response = decode_response(answer).map_err(|error| ReplicaError::Rejected(error.to_string()))?;
        response.report_to(context, began, None);
        response.result
    }

    /// How long a read of a table waits for those it has asked before it asks another; none: for ever.
    pub fn patience(&self, table: &Table) -> Option<Duration> {
        let mut tables = self.times.borrow_mut();
        let known = Self::times_of(&mut tables, table);
        known.speculation.patience(&known.times)
    }

    /// Notes how long a read of a table took.
    pub fn note_time(&self, table: &Table, began: Instant) {
        let mut tables = self.times.borrow_mut();
        Self::times_of(&mut tables, table).times.add(began.elapsed());
    }

    fn times_of<'a>(tables: &'a mut HashMap<TableId, TableTimes>, table: &Table) -> &'a mut TableTimes {
        if tables.len() >= MAX_TIMED_TABLES && !tables.contains_key(&table.schema.id) {
            tables.clear();
        }
        let (version, option) = (table.schema.version, &table.schema.options.speculative_retry);
        let fresh = || TableTimes { version, speculation: Speculation::parse(option), times: Histogram::default() };
        let known = tables.entry(table.schema.id).or_insert_with(fresh);
        if known.version != version {
            (known.version, known.speculation) = (version, Speculation::parse(option));
        }
        known
    }
}
