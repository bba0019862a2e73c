//! HTTP for administration and metrics: small servers beside the shards, which they ask by their mailboxes.
//!
//! They run on the process's first thread, never on a shard's: whatever they do costs requests nothing but the calls.

use crate::connection::accept::listen_error;
use axum::Router;
use axum::serve::Listener;
use rt::net::{TcpListener, TcpStream};
use rt::time::Duration;
use std::future::Future;
use std::io;
use std::net::SocketAddr;

/// The pause after the system refused another socket.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// An open port.
pub struct Port {
    listener: TcpListener,
}

impl Port {
    /// Opens the port. The error names the address.
    pub async fn open(address: SocketAddr) -> io::Result<Port> {
        let listener = rt::net::listen(address, rt::net::ListenOptions::default())
            .await
            .map_err(|error| listen_error(address, &error))?;
        Ok(Port { listener })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is ready and open requests are answered.
    pub async fn serve(self, router: Router, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        axum::serve(self, router).with_graceful_shutdown(stop).await
    }
}

impl Listener for Port {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    rt::time::sleep(REFUSED_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
