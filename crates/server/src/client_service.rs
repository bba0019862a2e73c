//! Serving clients: opens and closes the ports for CQL, also while the node runs. On shard 0.
//!
//! Every shard has its [`Server`] installed, whether clients are served or not.

use crate::connection::{ClientPort, Listeners, Server, Spread};
use crate::report;
use cql::Processor;
use rt::sync::Semaphore;
use rt::task::{Group, Task};
use rt::time::Duration;
use std::cell::RefCell;
use std::io;

/// How long connections that were cut may take to end.
const CUT: Duration = Duration::from_secs(1);

/// The ports for clients, open or not.
pub struct ClientService {
    ports: Vec<ClientPort>,
    /// How long requests under way may take when the ports are closed.
    limit: Duration,
    /// The most connections of clients at a time.
    most: usize,
    accepting: RefCell<Option<Task<()>>>,
    /// Held while ports are opened or closed.
    turn: Semaphore,
}

impl ClientService {
    /// Serves clients at these ports once [`ClientService::start`] is called.
    pub fn new(ports: Vec<ClientPort>, limit: Duration, most: usize) -> ClientService {
        ClientService { ports, limit, most, accepting: RefCell::new(None), turn: Semaphore::new(1) }
    }

    /// Whether the ports are open.
    pub fn is_serving(&self) -> bool {
        self.accepting.borrow().is_some()
    }

    /// Opens the ports, unless they are open. The error names the address.
    pub async fn start(&self) -> io::Result<()> {
        let _turn = self.turn.acquire().await;
        if self.is_serving() {
            return Ok(());
        }
        let listeners = Listeners::open(&self.ports).await?;
        rt::shard::call_all(|| async { rt::shard::service::<Server<Processor>>().start() }).await;
        let accepting = rt::task::spawn_in(
            Group::Statement,
            listeners.accept::<Processor>(Spread::new(rt::shard::count(), self.most)),
        );
        *self.accepting.borrow_mut() = Some(accepting);
        report::set_serving(!self.ports.is_empty());
        Ok(())
    }

    /// Closes the ports, lets requests under way end, and closes all connections. Connections that have not ended within the limit are cut.
    pub async fn stop(&self) {
        let _turn = self.turn.acquire().await;
        report::set_serving(false);
        let accepting = self.accepting.take();
        if let Some(accepting) = accepting {
            accepting.abort();
            let _ = accepting.await;
        }
        let limit = self.limit;
        rt::shard::call_all(move || async move {
            let server = rt::shard::service::<Server<Processor>>();
            if rt::time::timeout(limit, server.stop()).await.is_ok() {
                return;
            }
            let connections = server.transport.connection_count();
            tracing::warn!(connections, ?limit, "requests of clients did not end in time: cutting their connections");
            server.transport.cut_all();
            let _ = rt::time::timeout(CUT, server.stop()).await;
        })
        .await;
    }
}
