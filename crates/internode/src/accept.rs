//! The port for other nodes: assigns connections to shards, and accepts or rejects them.
//!
//! Shard 0 accepts and reads eight bytes. The socket then moves to the shard that they name. A
//! connection that does not begin with a preamble is closed. The log line for it is throttled.

use super::Internode;
use super::config::Between;
use super::connection::{Connection, End, drive};
use super::dial::read_sealed;
use super::error::{Rejection, RejectionCode};
use super::frame::Frames;
use super::handshake::{
    Hello, PREAMBLE, Preamble, Reply, Welcome, check_hello, encode_answer, needs_tls, no_tls, seal,
};
use super::metrics::{Level, count};
use super::serving::Serving;
use super::socket::Socket;
use rt::net::{AcceptErrors, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, TcpListener, TcpStream};
use rt::shard::{self, ShardId};
use rt::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// How long a rejected node has to read the reason before the connection is cut.
const LINGER: Duration = Duration::from_secs(1);
/// The maximum bytes that a rejected node may send meanwhile.
const LINGER_BYTES: usize = 1 << 20;

/// The open port for other nodes.
pub struct InternodeListener {
    listener: TcpListener,
}

impl InternodeListener {
    /// Opens the port. The error names the address.
    pub async fn open(address: SocketAddr) -> io::Result<InternodeListener> {
        let listener = rt::net::listen(address, rt::net::ListenOptions::default()).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen for other nodes on {address}: {error}"))
        })?;
        Ok(InternodeListener { listener })
    }

    /// The listening address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts connections for all shards, until dropped. Every shard must have its [`Internode`]
    /// installed.
    pub(super) async fn accept(self, internode: Rc<Internode>) {
        let mut errors = AcceptErrors::new("another node");
        loop {
            let (stream, from) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    errors.failed(&error).await;
                    continue;
                }
            };
            errors.accepted();
            if internode.greeting.get() >= internode.setting.config.handshakes as u64 {
                count(&internode.counters.garbage);
                continue;
            }
            rt::task::spawn(greet(internode.clone(), stream, from)).detach();
        }
    }
}

/// On the accepting shard: reads the preamble, and passes the socket to the requested shard.
async fn greet(internode: Rc<Internode>, mut stream: TcpStream, from: SocketAddr) {
    let greeting = Level::up(&internode.greeting);
    let mut bytes = [0; PREAMBLE];
    let limit = internode.setting.config.handshake_timeout;
    match rt::time::timeout(limit, stream.read_exact(&mut bytes)).await {
        Ok(Ok(_)) => {}
        // A port scan, for example.
        Ok(Err(error)) => return tracing::debug!(peer = %from, %error, "a connection ended before the handshake"),
        Err(_) => return internode.report_garbage(from, "nothing came"),
    }
    let Some(preamble) = Preamble::decode(&bytes) else {
        return internode.report_garbage(from, &format!("it began with {}", printable(&bytes)));
    };
    let to = ShardId((usize::from(preamble.shard) % shard::count()) as u16);
    let detached = match rt::net::detach(stream) {
        Ok(detached) => detached,
        Err(error) => return tracing::debug!(peer = %from, %error, "a node disconnected before it was served"),
    };
    drop(greeting);
    let shards = internode.shards;
    shard::call(to, move || async move {
        // The node is stopping.
        let Some(internode) = shards.try_get() else { return };
        match detached.attach() {
            Ok(stream) => rt::task::spawn(serve(internode, stream, from, preamble)).detach(),
            Err(error) => tracing::warn!(peer = %from, %error, "cannot serve a connection of another node: closing it"),
        }
    })
    .await;
}

/// Escapes bytes for a log line.
fn printable(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

/// On the requested shard: runs the handshake, then serves the connection until it ends.
async fn serve(internode: Rc<Internode>, stream: TcpStream, from: SocketAddr, preamble: Preamble) {
    let Some(inside) = internode.gate.enter() else { return };
    if internode.greeting.get() >= internode.setting.config.handshakes as u64 {
        return count(&internode.counters.garbage);
    }
    let greeting = Level::up(&internode.greeting);
    let limit = internode.setting.config.handshake_timeout;
    let agreed = rt::time::timeout(limit, Box::pin(shake_hands(&internode, stream, from, preamble))).await;
    drop(greeting);
    let (mut socket, hello, welcome) = match agreed {
        Ok(Ok(Some(agreed))) => agreed,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => return tracing::debug!(peer = %from, %error, "the handshake with another node failed"),
        Err(_) => {
            return tracing::debug!(peer = %from, ?limit, "a connection was closed, because its handshake did not end in time");
        }
    };
    let config = internode.setting.config;
    let party = &hello.from;
    let compress = config.compression.applies(internode.setting.place(), (&party.datacenter, &party.rack));
    let counters = internode.counters.clone();
    let connection = Connection::new(welcome.version, compress, counters.clone());
    let _listed = internode.list(party.host, &connection);
    let _level = Level::up(&counters.served_connections);
    let frames = Frames::new(welcome.version, config.largest_body);
    let mut role = Serving::new(connection.clone(), party, internode.handlers.clone(), config);
    let end = drive(&mut socket, frames, &connection, &mut role).await;
    drop(role);
    if let End::Bad(bad) = &end {
        tracing::warn!(node = %party.host, peer = %from, error = %bad, "closing a connection of another node");
    } else {
        tracing::debug!(node = %party.host, peer = %from, why = %end.why(), "a connection of another node has ended");
    }
    let _ = rt::time::timeout(LINGER, socket.shutdown()).await;
    drop(inside);
}

/// `None` if the other node was rejected and has received the reason.
async fn shake_hands(
    internode: &Internode,
    mut stream: TcpStream,
    from: SocketAddr,
    preamble: Preamble,
) -> io::Result<Option<(Socket, Hello, Welcome)>> {
    let own = &internode.setting.own;
    let policy = internode.setting.config.encryption;
    let tls = internode.tls.borrow().clone();
    let rejected = match (preamble.encrypted, &tls) {
        _ if internode.handlers.stopping.get() => {
            Some(Rejection::new(RejectionCode::NotServing, format!("node {} is stopping", own.host)))
        }
        (true, None) => Some(Rejection::new(RejectionCode::NoTls, no_tls(own))),
        (false, _) if policy == Between::All => Some(Rejection::new(RejectionCode::NeedsTls, needs_tls(own))),
        _ => None,
    };
    stream.write_all(&encode_answer(rejected.as_ref().map(|rejection| rejection.code))).await?;
    if let Some(rejection) = rejected {
        count(&internode.counters.rejected);
        internode.report_rejection(&rejection, from.ip());
        linger(stream).await;
        return Ok(None);
    }
    let mut socket = match (preamble.encrypted, tls) {
        (true, Some(tls)) => match tls.accept(stream, internode.setting.config.handshake_timeout).await {
            Ok(stream) => Socket::Encrypted(Box::new(stream)),
            Err(error) => {
                count(&internode.counters.rejected);
                let why = format!("no encrypted connection with the node at {}: {error}", from.ip());
                internode.report_rejection(&Rejection::new(RejectionCode::Tls, why), from.ip());
                return Ok(None);
            }
        },
        _ => Socket::Plain(stream),
    };
    let Some(hello) = read_sealed::<Hello>(&mut socket).await? else {
        internode.report_garbage(from, "its handshake could not be decoded");
        return Ok(None);
    };
    let own_shard = (internode.shard, internode.setting.shards);
    let decision = check_hello(own, own_shard, &internode.book(), (policy, preamble.encrypted), &hello);
    socket.write_all(&seal(&Reply::of(&decision))).await?;
    socket.flush().await?;
    match decision {
        Ok(welcome) => Ok(Some((socket, hello, welcome))),
        Err(rejection) => {
            count(&internode.counters.rejected);
            internode.report_rejection(&rejection, from.ip());
            linger(socket).await;
            Ok(None)
        }
    }
}

/// Closing a socket with unread input would reset the connection, and the other node might never
/// see the reason.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let drain = async {
        stream.shutdown().await?;
        let mut bin = vec![0; 4 << 10];
        let mut passed = 0;
        while passed < LINGER_BYTES {
            match stream.read(&mut bin).await? {
                0 => break,
                n => passed += n,
            }
        }
        io::Result::Ok(())
    };
    let _ = rt::time::timeout(LINGER, drain).await;
}
