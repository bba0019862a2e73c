//! Accepts connections, and chooses the shard that serves each one.
//!
//! One shard accepts. The socket moves once, before its first byte is read. On the ordinary port,
//! it moves to the shard with the fewest connections. On the shard-aware port, it moves to the
//! shard that the client chose by its own port number. That shard also does the TLS handshake.
//!
//! The number of connections is limited ([`most_connections`]), so that clients never take the
//! descriptors that files need. When all are in use, connections without STARTUP are evicted
//! ([`super::slots`]).

use super::drive;
use super::service::Service;
use super::slots::{ConnectionCounts, ConnectionSlot, PendingConnection, PendingConnections, STARTUP_GRACE};
use super::tls::Tls;
use super::transport::Server;
use rt::LogThrottle;
use rt::net::{AcceptErrors, Detached, TcpListener, TcpStream};
use rt::shard::{self, PerShard, ShardId};
use rt::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

/// The timeout for sending the refusal of a connection.
const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// How long to wait until an evicted connection frees its slot.
const EVICTION_TIME: Duration = Duration::from_millis(100);
/// The code of the error Overloaded.
const OVERLOADED: i32 = 0x1001;
/// Descriptors that are reserved for logs, metadata, listeners, the admin API and other nodes.
const KEPT_DESCRIPTORS: u64 = 64;
/// Descriptors that are reserved for each shard.
const KEPT_DESCRIPTORS_OF_SHARD: u64 = 16;
/// At least 1/8 of the descriptors are for clients, even if that violates the reservations.
const LEAST_SHARE: u64 = 8;

/// The most client connections if the process may have `descriptors` open descriptors, `files` of
/// them for sstables.
pub fn most_connections(descriptors: u64, files: u64, shards: usize) -> usize {
    let kept = KEPT_DESCRIPTORS + KEPT_DESCRIPTORS_OF_SHARD * shards as u64 + descriptors / 32;
    let left = descriptors.saturating_sub(files.saturating_add(kept));
    usize::try_from(left.max(descriptors / LEAST_SHARE).max(1)).unwrap_or(usize::MAX)
}

/// How a port chooses the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The shard with the fewest connections.
    Server,
    /// The client's port number modulo the number of shards.
    Client,
}

/// A port for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientPort {
    /// The address to listen on.
    pub address: SocketAddr,
    /// How it chooses the shard.
    pub choice: Choice,
    /// Whether it uses TLS. Then every shard has its [`Tls`].
    pub encrypted: bool,
}

/// The open ports of a node.
pub struct Listeners {
    ports: Vec<(TcpListener, ClientPort)>,
}

impl Listeners {
    /// Opens the ports. An error names the address.
    pub async fn open(ports: &[ClientPort]) -> io::Result<Listeners> {
        let mut open = Vec::new();
        for port in ports {
            let listener = rt::net::listen(port.address, rt::net::ListenOptions::default())
                .await
                .map_err(|error| listen_error(port.address, &error))?;
            open.push((listener, *port));
        }
        Ok(Listeners { ports: open })
    }

    /// The addresses of the open ports.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.ports.iter().map(|(listener, _)| listener.local_addr()).collect()
    }

    /// Accepts connections for all shards until dropped. Every shard has its server, and its
    /// [`Tls`] if a port is encrypted.
    pub async fn accept<S: Service>(self, counts: ConnectionCounts, servers: PerShard<Server<S>>, tls: PerShard<Tls>) {
        let pending = Rc::new(PendingConnections::new());
        let shards = Shards { servers, tls };
        let accept = |(listener, port)| accept(listener, port, counts.clone(), pending.clone(), shards);
        let loops = self.ports.into_iter().map(accept);
        let tasks: Vec<_> = loops.map(rt::task::spawn).collect();
        let _abort = AbortOnDrop(tasks);
        std::future::pending::<()>().await;
    }
}

/// The servers of all shards, and their TLS.
struct Shards<S> {
    servers: PerShard<Server<S>>,
    tls: PerShard<Tls>,
}

impl<S> Clone for Shards<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Shards<S> {}

struct AbortOnDrop(Vec<rt::task::Task<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(rt::task::Task::abort);
    }
}

/// An error of opening a port, with advice.
pub fn listen_error(address: SocketAddr, error: &io::Error) -> io::Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "another process listens there; is a node already running?",
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege",
        io::ErrorKind::AddrNotAvailable => "this machine does not have the address",
        _ => "",
    };
    let message = match hint {
        "" => format!("cannot listen on {address}: {error}"),
        hint => format!("cannot listen on {address}: {hint} ({error})"),
    };
    io::Error::new(error.kind(), message)
}

async fn accept<S: Service>(
    listener: TcpListener,
    port: ClientPort,
    counts: ConnectionCounts,
    pending: Rc<PendingConnections>,
    shards: Shards<S>,
) {
    let mut errors = AcceptErrors::new("a client");
    let (refusals, evictions) = (LogThrottle::default(), LogThrottle::default());
    loop {
        // A client never gets the last descriptor. It may be one that an HTTP port gave up for an
        // operator's connection.
        let accepted = listener.accept().await;
        let accepted = accepted.and_then(|accepted| rt::net::check_descriptor_left().map(|()| accepted));
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // No file descriptor is left, or the client disconnected early. The loop continues
                // in both cases.
                errors.failed(&error).await;
                continue;
            }
        };
        errors.accepted();
        if counts.is_full() && !make_room(&counts, &pending, &evictions, shards).await {
            if let Some(refused) = refusals.count(rt::time::now()) {
                tracing::warn!(
                    most = counts.most(),
                    refused,
                    "too many client connections for the descriptors of the process: the connection is refused; raise the limit (ulimit -n, \
                     LimitNOFILE) or use fewer connections"
                );
            }
            refuse(stream, port.encrypted, counts.most()).await;
            continue;
        }
        let to = match port.choice {
            Choice::Server => counts.least(),
            Choice::Client => counts.by_port(peer.port()),
        };
        let slot = counts.take(to);
        pending.push(rt::time::now(), slot.pending.clone());
        match rt::net::detach(stream) {
            Ok(detached) => rt::task::spawn(hand_over(shards, to, detached, peer, slot, port.encrypted)).detach(),
            Err(error) => tracing::debug!(%peer, %error, "a client disconnected before it was served"),
        }
    }
}

/// Evicts the oldest connection without STARTUP that has exceeded [`STARTUP_GRACE`], and waits for
/// its slot. False if no slot becomes free.
async fn make_room<S: Service>(
    counts: &ConnectionCounts,
    pending: &PendingConnections,
    evictions: &LogThrottle,
    shards: Shards<S>,
) -> bool {
    let Some(oldest) = pending.evict_oldest(rt::time::now()) else { return false };
    if let Some(evicted) = evictions.count(rt::time::now()) {
        tracing::warn!(
            most = counts.most(),
            evicted,
            grace = ?STARTUP_GRACE,
            "all client connections are in use: closed connections without STARTUP to accept new ones"
        );
    }
    rt::task::spawn(cut(shards, oldest)).detach();
    let _ = rt::time::timeout(EVICTION_TIME, counts.free()).await;
    !counts.is_full()
}

/// Closes an evicted connection. During its TLS handshake, the connection is not in its shard's
/// list yet, and ends by itself.
async fn cut<S: Service>(shards: Shards<S>, pending: Arc<PendingConnection>) {
    shard::call(pending.shard, move || async move {
        // None when the node is stopping.
        if let Some(server) = shards.servers.try_get() {
            server.transport.evict(pending.id());
        }
    })
    .await;
}

/// Sends an error frame with the reason to a client that is not served, and closes the connection.
/// A client that waits for a TLS handshake only sees the end of the connection.
async fn refuse(mut stream: TcpStream, encrypted: bool, most: usize) {
    if encrypted {
        return;
    }
    let why = format!("the node has reached its limit of {most} connections, which depends on its limit of open files");
    // Version 4, stream 0, ERROR.
    let mut frame = vec![0x84, 0, 0, 0, 0];
    frame.extend((4 + 2 + why.len() as u32).to_be_bytes());
    frame.extend(OVERLOADED.to_be_bytes());
    frame.extend((why.len() as u16).to_be_bytes());
    frame.extend(why.as_bytes());
    // Failures are ignored: the connection is closed in any case.
    let _ = rt::time::timeout(REFUSAL_TIME, async {
        stream.write_all(&frame).await?;
        stream.shutdown().await
    })
    .await;
}

async fn hand_over<S: Service>(
    shards: Shards<S>,
    to: ShardId,
    detached: Detached,
    peer: SocketAddr,
    slot: ConnectionSlot,
    encrypted: bool,
) {
    shard::call(to, move || async move {
        match detached.attach() {
            Ok(stream) => rt::task::spawn(async move {
                let pending = slot.pending.clone();
                let _slot = slot;
                // None when the node is stopping.
                let Some(server) = shards.servers.try_get() else { return };
                if encrypted {
                    // Boxed, so that the futures of other connections are not as large as this one.
                    Box::pin(serve_encrypted(&shards.tls.get(), server, stream, peer, pending)).await;
                } else {
                    drive::serve(server, stream, peer, None, Some(pending)).await;
                }
            })
            .detach(),
            Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection of a client: closing it"),
        }
    })
    .await;
}

async fn serve_encrypted<S: Service>(
    tls: &Tls,
    server: Rc<Server<S>>,
    stream: TcpStream,
    peer: SocketAddr,
    pending: Arc<PendingConnection>,
) {
    let handshake = tokio::select! {
        handshake = tls.accept(stream) => handshake,
        () = pending.evicted() => return,
    };
    match handshake {
        Ok((stream, encryption)) => drive::serve(server, stream, peer, Some(encryption), Some(pending)).await,
        Err(error) => tracing::debug!(%peer, %error, "TLS handshake failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_files() {
        assert_eq!(most_connections(1024, 512, 2), 1024 - 512 - 64 - 32 - 32);
        assert_eq!(most_connections(90, 45, 1), 11, "few descriptors still serve some clients");
        assert!(most_connections(1 << 20, 1 << 16, 64) > 900_000);
    }
}
