//! Accepting: which shard serves a new connection.
//!
//! One shard accepts; the socket moves once, before its first byte is read. On the ordinary port it goes to the shard with
//! the fewest connections; on the shard-aware port to the shard that the client chose by its own port number. That shard also does
//! the handshake where a port is encrypted.
//!
//! The number of connections is bounded ([`most_connections`]), so that clients never take the
//! descriptors which files need.

use super::drive;
use super::service::Service;
use super::tls::Tls;
use super::transport::Server;
use rt::LogThrottle;
use rt::net::{AcceptErrors, Detached, TcpListener, TcpStream};
use rt::shard::{self, ShardId};
use rt::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::AsyncWriteExt;

/// How long the refusal of a connection may take to be sent.
const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// The code of the error Overloaded.
const OVERLOADED: i32 = 0x1001;
/// Descriptors that are kept from clients: for logs, metadata, listeners, administration, other
/// nodes.
const KEPT_DESCRIPTORS: u64 = 64;
/// The same for each shard.
const KEPT_DESCRIPTORS_OF_SHARD: u64 = 16;
/// At least 1/8 of the descriptors are for clients, however few there are.
const LEAST_SHARE: u64 = 8;

/// How many connections of clients fit beside `files` open sstable files, if the process may have
/// `descriptors` open.
pub fn most_connections(descriptors: u64, files: u64, shards: usize) -> usize {
    let kept = KEPT_DESCRIPTORS + KEPT_DESCRIPTORS_OF_SHARD * shards as u64 + descriptors / 32;
    let left = descriptors.saturating_sub(files.saturating_add(kept));
    usize::try_from(left.max(descriptors / LEAST_SHARE).max(1)).unwrap_or(usize::MAX)
}

/// How many connections each shard serves.
#[derive(Debug, Clone)]
pub struct Spread {
    shards: Arc<[AtomicUsize]>,
    most: usize,
}

/// A connection, as [`Spread`] counts it; dropping it counts it out.
#[derive(Debug)]
struct Seat {
    spread: Spread,
    shard: ShardId,
}

impl Spread {
    /// No connections on any of `shards` shards; there will be at most `most` in all.
    pub fn new(shards: usize, most: usize) -> Spread {
        Spread { shards: (0..shards).map(|_| AtomicUsize::new(0)).collect(), most }
    }

    fn is_full(&self) -> bool {
        self.shards.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>() >= self.most
    }

    /// The shard with the fewest connections, the first of equals.
    fn least(&self) -> ShardId {
        let least = self.shards.iter().enumerate().min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        ShardId(least.map_or(0, |(shard, _)| shard as u16))
    }

    /// The shard that a client chose by its port.
    fn by_port(&self, port: u16) -> ShardId {
        ShardId(port % self.shards.len().clamp(1, usize::from(u16::MAX)) as u16)
    }

    fn take(&self, shard: ShardId) -> Seat {
        self.shards[usize::from(shard.0)].fetch_add(1, Ordering::Relaxed);
        Seat { spread: self.clone(), shard }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.spread.shards[usize::from(self.shard.0)].fetch_sub(1, Ordering::Relaxed);
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
    let (mut errors, refusals) = (AcceptErrors::new("a client"), LogThrottle::default());
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
        if spread.is_full() {
            if let Some(refused) = refusals.count(rt::time::now()) {
                tracing::warn!(
                    most = spread.most,
                    refused,
                    "too many client connections for the descriptors of the process: refused; raise the limit (ulimit -n, \
                     LimitNOFILE) or use fewer connections"
                );
            }
            refuse(stream, port.encrypted, spread.most).await;
            continue;
        }
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

/// Says why a connection is not served, as an error to the first request, and closes it. A client
/// that waits for a TLS handshake only sees the end of the connection.
async fn refuse(mut stream: TcpStream, encrypted: bool, most: usize) {
    if encrypted {
        return;
    }
    let why = format!("this node serves no more than {most} connections: its limit of open files allows no more");
    // Version 4, stream 0, ERROR.
    let mut frame = vec![0x84, 0, 0, 0, 0];
    frame.extend((4 + 2 + why.len() as u32).to_be_bytes());
    frame.extend(OVERLOADED.to_be_bytes());
    frame.extend((why.len() as u16).to_be_bytes());
    frame.extend(why.as_bytes());
    // Whether the client hears of it makes no difference to the node.
    let _ = rt::time::timeout(REFUSAL_TIME, async {
        stream.write_all(&frame).await?;
        stream.shutdown().await
    })
    .await;
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
        let spread = Spread::new(3, 7);
        let first: Vec<Seat> = (0..6).map(|_| spread.take(spread.least())).collect();
        let shards: Vec<u16> = first.iter().map(|seat| seat.shard.0).collect();
        assert_eq!(shards, [0, 1, 2, 0, 1, 2]);
        drop(first.into_iter().nth(4));
        assert_eq!(spread.least(), ShardId(0));
        let _one = spread.take(ShardId(0));
        assert_eq!(spread.least(), ShardId(1));
        assert_eq!(spread.by_port(19_043), ShardId(2));
    }

    #[test]
    fn connections_leave_descriptors_for_files() {
        let spread = Spread::new(2, 3);
        let seats: Vec<Seat> = (0..3).map(|_| spread.take(spread.least())).collect();
        assert!(spread.is_full());
        drop(seats);
        assert!(!spread.is_full());
        assert_eq!(most_connections(1024, 512, 2), 1024 - 512 - 64 - 32 - 32);
        assert_eq!(most_connections(90, 45, 1), 11, "few descriptors still serve some clients");
        assert!(most_connections(1 << 20, 1 << 16, 64) > 900_000);
    }
}
