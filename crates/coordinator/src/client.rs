//! One way to a replica, three distances: this shard by a function call, another shard of this node by its mailbox, another node by a
//! connection. [`ReplicaClient::send`] decides; at the other side [`Replica::perform`] is the only entry.
//!
//! The transport to other nodes is given from outside; without one, every other node is unreachable. Which nodes live and where they
//! are comes as snapshots ([`Nodes`]).

use super::count;
use super::miss::{Miss, Unreached};
use super::nodes::{Latencies, Nodes};
use bytes::Bytes;
use cluster::metadata::MetadataService;
use cluster::tablets::TabletReplica;
use futures_util::future::LocalBoxFuture;
use model::id::HostId;
use replica::wire::{Header, decode_response, encode_request};
use replica::{Answer, Context, Replica, ReplicaError, Request};
use rt::Pieces;
use rt::ShardId;
use rt::sync::Deadline;
use rt::task::Group;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// Carries requests to shards of other nodes.
pub trait Transport {
    /// Sends a request in its wire form, to be performed in a scheduling group, and waits for the answer, which is in its
    /// wire form too. Dropping the future cancels.
    fn call(
        &self,
        to: TabletReplica,
        request: Bytes,
        group: Group,
        deadline: Deadline,
    ) -> LocalBoxFuture<'static, Result<Bytes, Unreached>>;
}

/// A request that may go to several replicas: encoded at most once.
#[derive(Debug)]
pub(super) struct Message {
    /// What is asked.
    pub request: Request,
    bytes: OnceCell<Bytes>,
}

impl Message {
    #[inline]
    pub fn new(request: Request) -> Message {
        Message { request, bytes: OnceCell::new() }
    }

    fn bytes(&self, context: &Context) -> Bytes {
        self.bytes.get_or_init(|| encode_request(&Header::of(context), &self.request)).clone()
    }
}

/// The way to all replicas.
pub(super) struct ReplicaClient {
    /// This node.
    pub host: HostId,
    replica: Rc<Replica>,
    transport: RefCell<Option<Rc<dyn Transport>>>,
    nodes: RefCell<Rc<Nodes>>,
    /// How fast other nodes answer.
    pub latencies: RefCell<Latencies>,
    /// Requests to other shards of this node.
    pub to_shards: Cell<u64>,
    /// Requests to other nodes.
    pub to_nodes: Cell<u64>,
}

impl ReplicaClient {
    pub fn new(host: HostId, replica: Rc<Replica>) -> Rc<ReplicaClient> {
        Rc::new(ReplicaClient {
            host,
            replica,
            transport: RefCell::new(None),
            nodes: RefCell::new(Rc::new(Nodes::new(host, &[]))),
            latencies: RefCell::default(),
            to_shards: Cell::new(0),
            to_nodes: Cell::new(0),
        })
    }

    /// The nodes as they were seen last.
    pub fn nodes(&self) -> Rc<Nodes> {
        self.nodes.borrow().clone()
    }

    pub fn set_nodes(&self, nodes: Nodes) {
        *self.nodes.borrow_mut() = Rc::new(nodes);
    }

    pub fn set_transport(&self, transport: Rc<dyn Transport>) {
        *self.transport.borrow_mut() = Some(transport);
    }

    /// Has a replica perform a request, whatever its distance. Dropping the future cancels the request.
    #[inline]
    pub async fn send(&self, to: TabletReplica, message: &Message, context: &Context) -> Result<Answer, Miss> {
        if to.host == self.host && to.shard == rt::shard::this().0 {
            return self.replica.perform(&message.request, context).await.map_err(Miss::Refused);
        }
        // Boxed: the far distances must not make the near one's future larger.
        Box::pin(self.send_away(to, message, context)).await
    }

    async fn send_away(&self, to: TabletReplica, message: &Message, context: &Context) -> Result<Answer, Miss> {
        let is_own = to.host == self.host;
        count(if is_own { &self.to_shards } else { &self.to_nodes });
        let traced = context.trace.as_ref().map(|trace| {
            trace.event(match is_own {
                true => format!("Sending a request to shard {}", to.shard),
                false => format!("Sending a request to shard {} of node {}", to.shard, to.host),
            });
            trace.elapsed_micros()
        });
        let bytes = message.bytes(context);
        let (answer, address) = match is_own {
            true => (serve_on(ShardId(to.shard), bytes, context).await, None),
            false => {
                let answer = self.call(to, bytes, context).await.map_err(Miss::Unreached)?;
                (answer.into(), self.nodes.borrow().address(to.host))
            }
        };
        let response = decode_response(answer);
        let mut response = response.map_err(|error| Miss::Refused(ReplicaError::Storage(error.to_string())))?;
        response.report_to(context, traced, address);
        response.result.map_err(Miss::Refused)
    }

    /// Has another node answer.
    async fn call(&self, to: TabletReplica, request: Bytes, context: &Context) -> Result<Bytes, Unreached> {
        let transport = self.transport.borrow().clone();
        let Some(transport) = transport else {
            return Err(Unreached::Down("there is no way to other nodes".into()));
        };
        let began = rt::time::now();
        let answered = transport.call(to, request, context.class.group(), context.deadline).await;
        if !matches!(answered, Err(Unreached::Down(_))) {
            self.latencies.borrow_mut().add(to.host, began.elapsed(), rt::time::coarse_now());
        }
        answered
    }
}

/// Has another shard of this node answer, once that knows the metadata by which the request was routed: shards follow one after the other.
async fn serve_on(shard: ShardId, bytes: Bytes, context: &Context) -> Pieces {
    let (number, deadline) = (context.metadata_number, context.deadline);
    let serve = move || async move {
        if let Some(metadata) = rt::shard::try_service::<MetadataService>()
            && metadata.number() < number
        {
            metadata.wait_for_number(number, deadline).await;
        }
        rt::shard::service::<Replica>().serve(bytes, Some(deadline)).await
    };
    rt::shard::call(shard, serve).await
}
