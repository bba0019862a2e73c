//! Operations on this node as a member of its cluster, at an operator's request: it leaves the
//! cluster ([`leaving`]), or it is drained before a stop. On shard 0.
//!
//! An operation that has begun continues if the request for it ends. The request to leave is part
//! of the metadata, so a restart continues it.

pub mod leaving;
pub mod mode;

pub use mode::OperationMode;

use crate::client_service::ClientService;
use crate::layers::Layers;
use crate::wire;
use cluster::metadata::ChangeError;
use cluster::topology::{NodeState, leave, remove};
use internode::Internode;
use model::id::HostId;
use rt::shard::PerShard;
use rt::sync::watch;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Why an operation did not end well. The text is for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpError {
    /// It is not possible, and nothing has changed.
    Refused(String),
    /// It failed, or was cancelled.
    Failed(String),
}

impl OpError {
    fn of_change(error: ChangeError<String>) -> OpError {
        match error {
            ChangeError::Refused(why) => OpError::Refused(why),
            error => OpError::Failed(error.to_string()),
        }
    }
}

/// The result of leaving, once there is one.
type Outcome = Option<Result<(), String>>;

/// See the module.
pub struct NodeOps {
    layers: Layers,
    clients: PerShard<ClientService>,
    /// The mode, if an operation has changed it.
    mode: Cell<Option<OperationMode>>,
    leaving: RefCell<Option<watch::Receiver<Outcome>>>,
}

impl NodeOps {
    /// The operations of a running node.
    pub fn new(layers: Layers, clients: PerShard<ClientService>) -> Rc<NodeOps> {
        Rc::new(NodeOps { layers, clients, mode: Cell::new(None), leaving: RefCell::default() })
    }

    /// The operation mode of the node.
    pub fn mode(&self) -> OperationMode {
        self.mode.get().unwrap_or_else(|| mode::of_member(self.layers.metadata))
    }

    /// Whether the node may open its ports for clients. The error says why not.
    pub fn check_may_serve(&self) -> Result<(), String> {
        match self.mode() {
            OperationMode::Decommissioned => Err("This node has left the cluster and serves no clients".to_owned()),
            OperationMode::Draining | OperationMode::Drained => {
                Err("This node is drained: restart it to serve clients again".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// An error if this node has left the cluster: it can change nothing there any more.
    pub fn check_is_member(&self) -> Result<(), OpError> {
        match self.mode() {
            OperationMode::Decommissioned => Err(OpError::Refused("This node has left the cluster already".to_owned())),
            _ => Ok(()),
        }
    }

    /// Continues what a restart has interrupted: a leaving node leaves.
    pub fn resume(self: &Rc<Self>) {
        let service = self.layers.metadata.get();
        let own = service.current().topology.node(service.info().host_id).map(|node| node.state);
        if own == Some(NodeState::Leaving) {
            tracing::info!("this node was leaving its cluster when it stopped: its departure resumes");
            self.start_leaving();
        }
    }

    /// Makes this node leave its cluster, and returns once it has left. Several callers wait for
    /// the same end.
    pub async fn decommission(self: &Rc<Self>) -> Result<(), OpError> {
        self.check_is_member()?;
        if matches!(self.mode(), OperationMode::Draining | OperationMode::Drained) {
            return Err(OpError::Refused("This node is drained: restart it first".to_owned()));
        }
        let metadata = self.layers.metadata;
        leave::request(metadata, is_down(self.layers.internode)).await.map_err(OpError::of_change)?;
        let mut end = self.start_leaving();
        let ended = end.wait_for(Option::is_some).await.map(|ended| ended.clone());
        let ended = ended.ok().flatten().unwrap_or_else(|| Err("the node is stopping".to_owned()));
        ended.map_err(OpError::Failed)
    }

    /// Cancels leaving. Tablets that have moved stay where they are.
    pub async fn cancel_decommission(&self) -> Result<(), OpError> {
        self.check_is_member()?;
        let metadata = self.layers.metadata;
        let own = metadata.get().info().host_id;
        leave::cancel(metadata, own).await.map_err(|error| match error {
            ChangeError::Refused(_) => OpError::Refused("This node is not leaving the cluster".to_owned()),
            error => OpError::Failed(error.to_string()),
        })
    }

    /// Starts to leave, unless the node is leaving already.
    fn start_leaving(self: &Rc<Self>) -> watch::Receiver<Outcome> {
        let mut leaving = self.leaving.borrow_mut();
        if let Some(running) = leaving.as_ref().filter(|end| end.borrow().is_none()) {
            return running.clone();
        }
        let (sender, receiver) = watch::channel(None);
        *leaving = Some(receiver.clone());
        let ops = self.clone();
        rt::task::spawn(async move {
            let left = ops.leave().await;
            match &left {
                Ok(()) => tracing::info!("this node has left its cluster: stop it, and remove its data directory"),
                Err(why) => tracing::warn!(
                    why,
                    "the decommission of this node did not complete: the node is still a member of its cluster"
                ),
            }
            sender.send_replace(Some(left));
        })
        .detach();
        receiver
    }

    async fn leave(&self) -> Result<(), String> {
        let clients = self.clients.try_get();
        let was_serving = clients.as_ref().is_some_and(|clients| clients.is_serving());
        let left = leaving::leave(self.layers, async || {
            if let Some(clients) = &clients {
                clients.stop().await;
            }
        });
        match left.await {
            Ok(()) => {
                self.mode.set(Some(OperationMode::Decommissioned));
                Ok(())
            }
            Err(why) => {
                // The ports may be closed already.
                let serves_again =
                    was_serving && !rt::shard::stopping().is_cancelled() && self.check_may_serve().is_ok();
                if let Some(clients) = clients.filter(|_| serves_again)
                    && let Err(error) = clients.start().await
                {
                    tracing::error!(%error, "the ports for clients cannot be opened again: run `messina admin enablebinary`");
                }
                Err(why)
            }
        }
    }

    /// Removes a node that is down, and waits until other nodes have all its replicas. With
    /// `must_end` false, it does not wait, and other nodes need not be able to take them yet.
    pub async fn remove(&self, host: HostId, must_end: bool) -> Result<(), OpError> {
        self.check_is_member()?;
        let Layers { metadata, internode, .. } = self.layers;
        remove::exclude(metadata, host, must_end, is_down(internode)).await.map_err(OpError::of_change)?;
        tracing::info!(node = %host, "a node was removed from the cluster: other nodes take over its replicas");
        match must_end {
            true => remove::wait_for_last_replica(metadata, host, is_down(internode)).await.map_err(OpError::Failed),
            false => Ok(()),
        }
    }

    /// Prepares a stop: closes the ports for clients, announces the stop to other nodes, and
    /// flushes all memtables, so that the next start has nothing to replay.
    pub async fn drain(&self) -> Result<(), OpError> {
        self.check_may_serve().map_err(OpError::Refused)?;
        if self.mode() == OperationMode::Leaving {
            let why = "This node is leaving the cluster: wait for the end, or cancel it (decommission --cancel)";
            return Err(OpError::Refused(why.to_owned()));
        }
        self.mode.set(Some(OperationMode::Draining));
        if let Some(clients) = self.clients.try_get() {
            clients.stop().await;
        }
        wire::announce_stop(self.layers.internode).await;
        let flushed = self.layers.engine.call_all(|engine| async move { engine.flush(None).await });
        let flushed: Result<Vec<()>, _> = flushed.await.into_iter().collect();
        // Even if it cannot flush: the ports are closed.
        self.mode.set(Some(OperationMode::Drained));
        flushed.map(drop).map_err(|error| OpError::Failed(error.to_string()))
    }
}

/// Which nodes are down, as seen by this node.
pub(crate) fn is_down(internodes: PerShard<Internode>) -> impl Fn(HostId) -> bool {
    let liveness = internodes.try_get().map(|internode| internode.liveness());
    move |host| liveness.as_ref().is_some_and(|liveness| liveness.is_down(host))
}
