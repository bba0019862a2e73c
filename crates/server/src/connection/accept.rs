//! Accepting: which shard serves a new connection.
//!
//! One shard accepts; the socket moves once, before its first byte is read. On the ordinary port it goes to the shard with
//! the fewest connections; on the shard-aware port to the shard that the client chose by its own port number. That shard also does
//! the handshake where a port is encrypted.

use super::drive;
use super::service::Service;
use super::tls::Tls;
use super::transport::Server;
use rt::net::{AcceptErrors, Detached, TcpListener, TcpStream};
use rt::shard::{self, ShardId};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many connections each shard serves.
#[derive(Debug, Clone)]
pub struct Spread(Arc<[AtomicUsize]>);

/// A connection, as [`Spread`] counts it; dropping it counts it out.
#[derive(Debug)]
struct Seat {
    spread: Spread,
    shard: ShardId,
}

impl Spread {
    /// No connections on any of `shards` shards.
    pub fn new(shards: usize) -> Spread {
        Spread((0..shards).map(|_| AtomicUsize::new(0)).collect())
    }

    /// The shard with the fewest connections, the first of equals.
    fn least(&self) -> ShardId {
        let least = self.0.iter().enumerate().min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        ShardId(least.map_or(0, |(shard, _)| shard as u16))
    }

    /// The shard that a client chose by its port.
    fn by_port(&self, port: u16) -> ShardId {
        ShardId(port % self.0.len().clamp(1, usize::from(u16::MAX)) as u16)
    }

    fn take(&self, shard: ShardId) -> Seat {
        self.0[usize::from(shard.0)].fetch_add(1, Ordering::Relaxed);
        Seat { spread: self.clone(), shard }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.spread.0[usize::from(self.shard.0)].fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a port chooses the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Fewest connections.
    Server,
    /// Client's port modulo shards.
    Client,
}

/// A port for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientPort {
    /// Where it is.
    pub address: SocketAddr,
    /// How it chooses the shard.
    pub choice: Choice,
    /// It speaks TLS: every shard has its [`Tls`] installed.
    pub encrypted: bool,
}

/// The open ports of a node.
pub struct Listeners {
    ports: Vec<(TcpListener, ClientPort)>,
}

impl Listeners {
    /// Opens the ports. The error names the address.
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

    /// The addresses that are listened on.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.ports.iter().map(|(listener, _)| listener.local_addr()).collect()
    }

    /// Accepts connections for all shards, until dropped. Every shard has its `Server<S>` installed.
    pub async fn accept<S: Service>(self, spread: Spread) {
        let loops = self.ports.into_iter().map(|(listener, port)| accept::<S>(listener, port, spread.clone()));
        let tasks: Vec<_> = loops.map(rt::task::spawn).collect();
        let _abort = AbortOnDrop(tasks);
        std::future::pending::<()>().await;
    }
}

struct AbortOnDrop(Vec<rt::task::Task<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(rt::task::Task::abort);
    }
}

/// An error of listening that says what to do.
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

async fn accept<S: Service>(listener: TcpListener, port: ClientPort, spread: Spread) {
    let mut errors = AcceptErrors::new("a client");
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // No file descriptor is left, or the client left early: the node goes on in both cases.
                errors.failed(&error).await;
                continue;
            }
        };
        errors.accepted();
        let to = match port.choice {
            Choice::Server => spread.least(),
            Choice::Client => spread.by_port(peer.port()),
        };
        let seat = spread.take(to);
        match rt::net::detach(stream) {
            Ok(detached) => rt::task::spawn(hand_over::<S>(to, detached, peer, seat, port.encrypted)).detach(),
            Err(error) => tracing::debug!(%peer, %error, "a client left before it was served"),
        }
    }
}

async fn hand_over<S: Service>(to: ShardId, detached: Detached, peer: SocketAddr, seat: Seat, encrypted: bool) {
    shard::call(to, move || async move {
        match detached.attach() {
            Ok(stream) => rt::task::spawn(async move {
                let _seat = seat;
                // None when the node is stopping.
                let Some(server) = shard::try_service::<Server<S>>() else { return };
                if encrypted {
                    // Apart, so that other connections do not carry its size.
                    Box::pin(serve_encrypted(server, stream, peer)).await;
                } else {
                    drive::serve(server, stream, peer, None).await;
                }
            })
            .detach(),
            Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection"),
        }
    })
    .await;
}

async fn serve_encrypted<S: Service>(server: Rc<Server<S>>, stream: TcpStream, peer: SocketAddr) {
    match shard::service::<Tls>().accept(stream).await {
        Ok((stream, encryption)) => drive::serve(server, stream, peer, Some(encryption)).await,
        Err(error) => tracing::debug!(%peer, %error, "no encrypted connection came about"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_shard_is_chosen() {
        let spread = Spread::new(3);
        let first: Vec<Seat> = (0..6).map(|_| spread.take(spread.least())).collect();
        let shards: Vec<u16> = first.iter().map(|seat| seat.shard.0).collect();
        assert_eq!(shards, [0, 1, 2, 0, 1, 2]);
        drop(first.into_iter().nth(4));
        assert_eq!(spread.least(), ShardId(0));
        let _one = spread.take(ShardId(0));
        assert_eq!(spread.least(), ShardId(1));
        assert_eq!(spread.by_port(19_043), ShardId(2));
    }
}
