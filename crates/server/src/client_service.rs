//! Serving clients: opens and closes the ports for CQL, also while the node runs. On shard 0.
//!
//! Every shard has its [`Server`], whether clients are served or not.

use crate::connection::tls::Tls;
use crate::connection::{ClientPort, ConnectionCounts, Listeners, Server};
use crate::report::Report;
use cql::Processor;
use rt::shard::PerShard;
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
    servers: PerShard<Server<Processor>>,
    tls: PerShard<Tls>,
    /// Not set on a node without `seeds`.
    report: PerShard<Report>,
    accepting: RefCell<Option<Task<()>>>,
    /// Held while ports are opened or closed.
    turn: Semaphore,
}

impl ClientService {
    /// Serves clients at these ports once [`ClientService::start`] is called.
    pub(crate) fn new(
        ports: Vec<ClientPort>,
        limit: Duration,
        most: usize,
        servers: PerShard<Server<Processor>>,
        tls: PerShard<Tls>,
        report: PerShard<Report>,
    ) -> ClientService {
        ClientService {
            ports,
            limit,
            most,
            servers,
            tls,
            report,
            accepting: RefCell::new(None),
            turn: Semaphore::new(1),
        }
    }

    /// Whether the ports are open.
    pub fn is_serving(&self) -> bool {
        self.accepting.borrow().is_some()
    }

    /// Opens the ports, unless they are open. The error names the address, or says that the node is
    /// stopping.
    pub async fn start(&self) -> io::Result<()> {
        let _turn = self.turn.acquire().await;
        if rt::shard::stopping().is_cancelled() {
            return Err(io::Error::other("the node is stopping"));
        }
        if self.is_serving() {
            return Ok(());
        }
        let listeners = Listeners::open(&self.ports).await?;
        self.servers.call_all(|server| async move { server.start() }).await;
        let accepting = rt::task::spawn_in(
            Group::Statement,
            listeners.accept(ConnectionCounts::new(rt::shard::count(), self.most), self.servers, self.tls),
        );
        *self.accepting.borrow_mut() = Some(accepting);
        self.set_serving(!self.ports.is_empty());
        Ok(())
    }

    /// Closes the ports, lets pending requests end, and closes all connections. Connections that
    /// have not ended within the limit are aborted.
    pub async fn stop(&self) {
        let _turn = self.turn.acquire().await;
        self.set_serving(false);
        let accepting = self.accepting.take();
        if let Some(accepting) = accepting {
            accepting.abort();
            let _ = accepting.await;
        }
        let limit = self.limit;
        let stopped = self.servers.call_all(move |server| async move {
            if rt::time::timeout(limit, server.stop()).await.is_ok() {
                return;
            }
            let connections = server.transport.connection_count();
            tracing::warn!(connections, ?limit, "client requests did not end in time: closing their connections");
            server.transport.cut_all();
            let _ = rt::time::timeout(CUT, server.stop()).await;
        });
        stopped.await;
    }

    fn set_serving(&self, serving: bool) {
        if let Some(report) = self.report.try_get() {
            report.set_serving(serving);
        }
    }
}
