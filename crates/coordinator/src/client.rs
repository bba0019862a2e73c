//! Sends requests to replicas by three transports: this shard by a function call, another shard of
//! this node by its mailbox, another node by a connection. [`ReplicaClient::send`] decides which.
//! On the other side, [`Replica::perform`] is the only entry.
//!
//! The transport to other nodes is set from outside. Without one, every other node is unreachable.
//! Snapshots ([`Nodes`]) say where the nodes are and which of them are up.

use super::count;
use super::nodes::{Latencies, Nodes};
use super::replica_failure::{ReplicaFailure, SendError};
use bytes::Bytes;
use cluster::metadata::ClusterShards;
use cluster::tablets::TabletReplica;
use futures_util::future::LocalBoxFuture;
use internode::Verb;
use model::id::HostId;
use replica::wire::{Header, decode_response, encode_request};
use replica::{Context, RateLimitMode, Replica, ReplicaError, ReplicaRequest, ReplicaResponse};
use rt::Pieces;
use rt::ShardId;
use rt::sync::Deadline;
use std::cell::{Cell, OnceCell, RefCell};
use std::pin::pin;
use std::rc::Rc;

/// Carries requests to shards of other nodes.
pub trait Transport {
    /// Sends a request of a verb, whose scheduling group the receiver uses. Returns the response,
    /// or an error at the deadline. Dropping the future cancels the request.
    fn call(
        &self,
        to: TabletReplica,
        verb: Verb,
        request: Bytes,
        deadline: Deadline,
    ) -> LocalBoxFuture<'static, Result<Bytes, SendError>>;
}

/// A request that may go to several replicas: encoded at most once, with the header of the context
/// that it is first sent with. A request with another context is another message.
#[derive(Debug)]
pub(super) struct Message {
    /// The request.
    pub request: ReplicaRequest,
    bytes: OnceCell<Encoded>,
}

/// The wire form of a message, and what its header says of the context.
#[derive(Debug)]
struct Encoded {
    bytes: Bytes,
    metadata_number: u64,
    rate_limit: RateLimitMode,
}

impl Message {
    #[inline]
    pub fn new(request: ReplicaRequest) -> Message {
        Message { request, bytes: OnceCell::new() }
    }

    fn bytes(&self, context: &Context) -> Bytes {
        let Context { metadata_number, rate_limit, .. } = *context;
        let encode =
            || Encoded { bytes: encode_request(&Header::of(context), &self.request), metadata_number, rate_limit };
        let encoded = self.bytes.get_or_init(encode);
        assert!(
            encoded.metadata_number == metadata_number && encoded.rate_limit == rate_limit,
            "a message is sent with the context that it was encoded with"
        );
        encoded.bytes.clone()
    }
}

/// Sends requests to replicas.
pub(super) struct ReplicaClient {
    /// This node's host id.
    pub host: HostId,
    replica: Rc<Replica>,
    /// The other shards of this node.
    shards: ClusterShards,
    transport: RefCell<Option<Rc<dyn Transport>>>,
    nodes: RefCell<Rc<Nodes>>,
    /// Recent response times of other nodes.
    pub latencies: RefCell<Latencies>,
    /// Number of requests sent to other shards of this node.
    pub to_shards: Cell<u64>,
    /// Number of requests sent to other nodes.
    pub to_nodes: Cell<u64>,
}

impl ReplicaClient {
    pub fn new(host: HostId, replica: Rc<Replica>, shards: ClusterShards) -> Rc<ReplicaClient> {
        Rc::new(ReplicaClient {
            host,
            replica,
            shards,
            transport: RefCell::new(None),
            nodes: RefCell::new(Rc::new(Nodes::new(host, &[]))),
            latencies: RefCell::default(),
            to_shards: Cell::new(0),
            to_nodes: Cell::new(0),
        })
    }

    /// The newest snapshot of the nodes.
    pub fn nodes(&self) -> Rc<Nodes> {
        self.nodes.borrow().clone()
    }

    /// Whether requests wait for this shard for longer than they should.
    pub fn is_overloaded(&self) -> bool {
        self.replica.is_overloaded()
    }

    pub fn set_nodes(&self, nodes: Nodes) {
        *self.nodes.borrow_mut() = Rc::new(nodes);
    }

    pub fn set_transport(&self, transport: Rc<dyn Transport>) {
        *self.transport.borrow_mut() = Some(transport);
    }

    /// The transport to other nodes, if one is set.
    pub fn transport(&self) -> Option<Rc<dyn Transport>> {
        self.transport.borrow().clone()
    }

    /// Sends a request to a replica, by any transport. Returns the answer, or a timeout at the
    /// deadline of the context. Dropping the future cancels the request.
    #[inline]
    pub async fn send(
        &self,
        to: TabletReplica,
        message: &Message,
        context: &Context,
    ) -> Result<ReplicaResponse, ReplicaFailure> {
        if to.host == self.host && to.shard == rt::shard::this().0 {
            // Pinned, so that this large future is not moved.
            let work = pin!(self.replica.perform(&message.request, context));
            let performed = context.deadline.limit(work).await;
            return performed.unwrap_or(Err(ReplicaError::Timeout)).map_err(ReplicaFailure::Refused);
        }
        // Boxed: the other transports must not enlarge the future of the local call.
        Box::pin(self.send_away(to, message, context)).await
    }

    async fn send_away(
        &self,
        to: TabletReplica,
        message: &Message,
        context: &Context,
    ) -> Result<ReplicaResponse, ReplicaFailure> {
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
        let (answer, address) = if is_own {
            let served = context.deadline.limit(serve_on(self.shards, ShardId(to.shard), bytes, context)).await;
            (served.map_err(|_| ReplicaFailure::Refused(ReplicaError::Timeout))?, None)
        } else {
            let answer = self.call(to, bytes, context).await.map_err(ReplicaFailure::Send)?;
            (answer.into(), self.nodes.borrow().address(to.host))
        };
        let response = decode_response(answer);
        let mut response =
            response.map_err(|error| ReplicaFailure::Refused(ReplicaError::Storage(error.to_string())))?;
        response.report_to(context, traced, address);
        response.result.map_err(ReplicaFailure::Refused)
    }

    /// Sends a request to another node.
    async fn call(&self, to: TabletReplica, request: Bytes, context: &Context) -> Result<Bytes, SendError> {
        let Some(transport) = self.transport() else {
            return Err(SendError::Down("this node has no transport to other nodes".into()));
        };
        let began = rt::time::now();
        let answered = transport.call(to, Verb::of_replica(context.class.group()), request, context.deadline).await;
        // A lost connection or a refusal says nothing about the time that a response takes.
        let (took, now) = (began.elapsed(), rt::time::coarse_now());
        match answered {
            Ok(_) => self.latencies.borrow_mut().add(to.host, took, now),
            Err(SendError::TimedOut) => self.latencies.borrow_mut().add_longer(to.host, took, now),
            Err(_) => {}
        }
        answered
    }
}

/// Performs a request on another shard of this node. The shard first waits for the metadata that
/// routed the request, because shards apply new metadata one after the other.
async fn serve_on(shards: ClusterShards, shard: ShardId, bytes: Bytes, context: &Context) -> Pieces {
    let (number, deadline) = (context.metadata_number, context.deadline);
    let serve = move || async move {
        // Late metadata leaves no time: the replica refuses the request by its deadline.
        let _held = match shards.metadata.try_get() {
            Some(metadata) => metadata.for_request(number, deadline).await,
            None => None,
        };
        shards.replica.get().serve_own(bytes, deadline).await
    };
    rt::shard::call(shard, serve).await
}
