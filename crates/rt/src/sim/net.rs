//! TCP of the simulated network: turmoil's, with connections that end at any byte that the test
//! chooses.
//!
//! A cut is defined by a number of bytes from one node to another, over whichever connection. The
//! bytes before the cut arrive. The writer sees its write succeed completely, as with a kernel that
//! has buffered it, and gets an error at its next operation. The reader sees the connection end in
//! the middle of the data.

use crate::ctx;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The pending cuts of a world, by sender and receiver, with the number of bytes before the cut.
/// Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Cuts {
    due: Arc<Mutex<BTreeMap<(IpAddr, IpAddr), u64>>>,
}

impl Cuts {
    fn due(&self) -> MutexGuard<'_, BTreeMap<(IpAddr, IpAddr), u64>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, from: IpAddr, to: IpAddr, after: u64) {
        self.due().insert((from, to), after);
    }

    pub fn clear(&self) {
        self.due().clear();
    }

    /// The cut, if it falls within the next `len` bytes from one node to another. Returns how many
    /// of these arrive.
    fn meet(&self, from: IpAddr, to: IpAddr, len: usize) -> Option<usize> {
        let mut due = self.due();
        let before = due.get_mut(&(from, to))?;
        if *before > len as u64 {
            *before -= len as u64;
            return None;
        }
        due.remove(&(from, to)).map(|before| before as usize)
    }

    /// The cuts of the running shard's world.
    fn of_this_world() -> Cuts {
        ctx::try_with(|c| c.simulated.as_ref().map(|sim| sim.cuts.clone())).flatten().unwrap_or_default()
    }
}

/// A connection.
#[derive(Debug)]
pub struct TcpStream {
    inner: turmoil::net::TcpStream,
    cuts: Cuts,
    ended: bool,
    reader: Option<Waker>,
}

impl std::fmt::Debug for Cuts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cuts").finish()
    }
}

impl TcpStream {
    fn new(inner: turmoil::net::TcpStream) -> TcpStream {
        TcpStream { inner, cuts: Cuts::of_this_world(), ended: false, reader: None }
    }

    /// Connects to an address. There is no time limit.
    pub async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
        turmoil::net::TcpStream::connect(addr).await.map(TcpStream::new)
    }

    /// Has no effect.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.inner.set_nodelay(nodelay)
    }

    /// This side's address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }

    fn check(&self) -> io::Result<()> {
        if self.ended { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        own.check()?;
        let read = Pin::new(&mut own.inner).poll_read(cx, buf);
        own.reader = read.is_pending().then(|| cx.waker().clone());
        read
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        own.check()?;
        let (from, to) = (own.inner.local_addr()?.ip(), own.inner.peer_addr()?.ip());
        let Some(arrive) = own.cuts.meet(from, to, bytes.len()) else {
            return Pin::new(&mut own.inner).poll_write(cx, bytes);
        };
        // If the window is full at this moment, the bytes before the cut are lost too.
        let sent = arrive > 0 && Pin::new(&mut own.inner).poll_write(cx, &bytes[..arrive])?.is_ready();
        super::trace(&format!(
            "the connection from {from} to {to} ends after {arrive} bytes of {}: {sent}",
            bytes.len()
        ));
        own.ended = true;
        // The other side may have ended the connection before.
        let _ = Pin::new(&mut own.inner).poll_shutdown(cx);
        if let Some(reader) = own.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        own.check()?;
        Pin::new(&mut own.inner).poll_shutdown(cx)
    }
}

/// A listening socket.
pub struct TcpListener(turmoil::net::TcpListener);

impl TcpListener {
    /// Listens on an address.
    pub async fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        turmoil::net::TcpListener::bind(addr).await.map(TcpListener)
    }

    /// The next connection, and its remote address.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, from) = self.0.accept().await?;
        Ok((TcpStream::new(stream), from))
    }

    /// The listening address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}
