//! TCP sockets: the kernel's in production, the simulated network's under feature `sim`.

mod accept_errors;
mod backlog;
mod spare_descriptors;

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use accept_errors::AcceptErrors;
pub use backlog::{StreamBacklog, UnreadInput};
pub use spare_descriptors::{SpareDescriptors, check_descriptor_left};

#[cfg(feature = "sim")]
pub use crate::sim::net::{TcpListener, TcpStream};
#[cfg(not(feature = "sim"))]
pub use tokio::net::{TcpListener, TcpStream};

pub use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf, duplex, split,
};

/// Whether this shard's reactor knows that the peer has closed or reset the connection. Bytes that
/// arrived before may still be there to read.
#[cfg(not(feature = "sim"))]
pub fn is_closed_by_peer(stream: &TcpStream) -> bool {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use tokio::io::Interest;
    // Those bytes would make an interest in readable data ready. This one only the end makes ready.
    let ready = pin!(stream.ready(Interest::PRIORITY)).poll(&mut Context::from_waker(Waker::noop()));
    matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
}

/// Never: the simulated network shows the end of a connection only to its reader.
#[cfg(feature = "sim")]
pub fn is_closed_by_peer(_: &TcpStream) -> bool {
    false
}

/// How to open a listening socket.
#[derive(Debug, Clone, Copy)]
pub struct ListenOptions {
    /// Lets several sockets (one per shard) listen on the same address. The kernel distributes
    /// connections over them.
    pub reuse_port: bool,
    /// The maximum number of connections that wait to be accepted.
    pub backlog: u32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { reuse_port: false, backlog: 1024 }
    }
}

/// Listens on `addr` (`SO_REUSEADDR` is always set).
#[cfg(not(feature = "sim"))]
pub async fn listen(addr: SocketAddr, options: ListenOptions) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(options.backlog.min(i32::MAX as u32) as i32)?;
    TcpListener::from_std(socket.into())
}

/// Listens on `addr`. The options have no effect in the simulation.
#[cfg(feature = "sim")]
pub async fn listen(addr: SocketAddr, options: ListenOptions) -> io::Result<TcpListener> {
    let _ = options;
    TcpListener::bind(addr).await
}

/// The addresses of a host, in no order. Only the system's time limit applies.
#[cfg(not(feature = "sim"))]
pub async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((host, port)).await?.collect())
}

/// There is no name resolution in the simulation: nodes use addresses.
#[cfg(feature = "sim")]
pub async fn lookup(host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
    Err(io::Error::other(format!("there are no names in the simulation: {host}")))
}

/// Connects to `addr` with Nagle's algorithm off. There is no time limit: wrap it in
/// `rt::time::timeout`.
pub async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Like [`connect`], from the address `local` and any port, if given and of the same IP version.
#[cfg(not(feature = "sim"))]
pub async fn connect_from(local: Option<IpAddr>, addr: SocketAddr) -> io::Result<TcpStream> {
    let Some(local) = local.filter(|local| local.is_ipv4() == addr.is_ipv4()) else { return connect(addr).await };
    let socket = if addr.is_ipv4() { tokio::net::TcpSocket::new_v4()? } else { tokio::net::TcpSocket::new_v6()? };
    socket.bind(SocketAddr::new(local, 0))?;
    let stream = socket.connect(addr).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Like [`connect`]: a simulated node has one address.
#[cfg(feature = "sim")]
pub async fn connect_from(local: Option<IpAddr>, addr: SocketAddr) -> io::Result<TcpStream> {
    let _ = local;
    connect(addr).await
}

/// A connected socket that moves to another shard. It belongs to no reactor.
#[cfg(not(feature = "sim"))]
#[derive(Debug)]
pub struct Detached(std::net::TcpStream);

/// Detaches an accepted socket from this shard, with Nagle's algorithm off and keep-alive on.
#[cfg(not(feature = "sim"))]
pub fn detach(stream: TcpStream) -> io::Result<Detached> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream).set_keepalive(true)?;
    Ok(Detached(stream.into_std()?))
}

#[cfg(not(feature = "sim"))]
impl Detached {
    /// Attaches the socket to this shard.
    pub fn attach(self) -> io::Result<TcpStream> {
        TcpStream::from_std(self.0)
    }
}

/// A connected socket that moves to another shard.
#[cfg(feature = "sim")]
#[derive(Debug)]
pub struct Detached(TcpStream);

/// Detaches an accepted socket from this shard.
#[cfg(feature = "sim")]
pub fn detach(stream: TcpStream) -> io::Result<Detached> {
    stream.set_nodelay(true)?;
    Ok(Detached(stream))
}

#[cfg(feature = "sim")]
impl Detached {
    /// Attaches the socket to this shard.
    pub fn attach(self) -> io::Result<TcpStream> {
        Ok(self.0)
    }
}
