//! Input that waits in sockets because its shard has no time to read it.
//!
//! If the loop of a connection ends its turn before its socket is empty, it reports the bytes that
//! are left. Little's law gives the time for which input waits: the sum of these bytes over time,
//! divided by the bytes received. The queue of ready tasks does not show this wait: the task of a
//! connection runs in each round, but reads only a part of its input.

use super::TcpStream;
use crate::backlog::Backlog;
use crate::ctx;
use crate::group::Group;
use crate::time::{Duration, Instant, coarse_now};
use std::cell::Cell;
use std::rc::Rc;

/// The least time between two looks at a socket, each of which is a system call.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The part of one stream in its shard's backlog. Dropping it removes the part.
#[derive(Debug)]
pub struct StreamBacklog {
    shard: Rc<Backlog>,
    left: Cell<u64>,
    looked: Cell<Option<Instant>>,
}

impl Default for StreamBacklog {
    fn default() -> StreamBacklog {
        StreamBacklog { shard: ctx::with(|c| c.backlog.clone()), left: Cell::new(0), looked: Cell::new(None) }
    }
}

impl StreamBacklog {
    /// `bytes` were received. Only what statements wait for counts.
    #[inline]
    pub fn received(&self, bytes: usize) {
        if crate::task::group() != Group::Statement {
            return;
        }
        self.shard.received.set(self.shard.received.get() + bytes as u64);
    }

    /// The stream has no input, or is not read for a reason other than time.
    #[inline]
    pub fn none_left(&self) {
        if self.looked.take().is_some() {
            self.set(0);
        }
    }

    /// The turn ends because the poll's time slice was used up. `buffered` bytes and the bytes in
    /// the socket are left.
    pub fn some_left(&self, buffered: usize, stream: &impl UnreadInput) {
        if crate::task::group() != Group::Statement {
            return;
        }
        let now = coarse_now();
        if self.looked.get().is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_EVERY) {
            self.looked.set(Some(now));
            self.set((buffered + stream.unread_input()) as u64);
        }
    }

    fn set(&self, left: u64) {
        self.shard.waited(coarse_now());
        let before = self.left.replace(left);
        self.shard.left.set(self.shard.left.get() - before + left);
    }
}

impl Drop for StreamBacklog {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A stream that knows how much input it has.
pub trait UnreadInput {
    /// Bytes that have arrived and that the process has not read; 0 if this is not known.
    fn unread_input(&self) -> usize;
}

#[cfg(not(feature = "sim"))]
impl UnreadInput for TcpStream {
    #[allow(unsafe_code)]
    fn unread_input(&self) -> usize {
        use std::os::fd::AsRawFd;
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open as long as the stream, and FIONREAD writes one int.
        let failed = unsafe { libc::ioctl(self.as_raw_fd(), libc::FIONREAD, &raw mut bytes) } != 0;
        if failed { 0 } else { usize::try_from(bytes).unwrap_or(0) }
    }
}

#[cfg(feature = "sim")]
impl UnreadInput for TcpStream {
    fn unread_input(&self) -> usize {
        0
    }
}

/// Encrypted bytes, about as many as the input has.
impl UnreadInput for tokio_rustls::server::TlsStream<TcpStream> {
    fn unread_input(&self) -> usize {
        self.get_ref().0.unread_input()
    }
}

/// Encrypted bytes, about as many as the input has.
impl UnreadInput for tokio_rustls::TlsStream<TcpStream> {
    fn unread_input(&self) -> usize {
        self.get_ref().0.unread_input()
    }
}

/// The stream of tests.
impl UnreadInput for super::DuplexStream {
    fn unread_input(&self) -> usize {
        0
    }
}

#[cfg(all(test, not(feature = "sim")))]
mod tests {
    use super::super::{AsyncReadExt, AsyncWriteExt, ListenOptions, connect, listen};
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    fn left() -> u64 {
        crate::metrics::snapshot().input_left
    }

    #[test]
    fn bytes_left_in_sockets_are_counted_until_read_or_dropped() {
        crate::block_on(async {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let listener = listen(any, ListenOptions::default()).await.expect("listens");
            let mut here = connect(listener.local_addr().expect("bound")).await.expect("connects");
            let (mut there, _) = listener.accept().await.expect("accepts");
            here.write_all(&[7; 1_000]).await.expect("sent");
            there.readable().await.expect("arrives");
            while there.unread_input() < 1_000 {
                crate::task::yield_now().await;
            }
            let (backlog, other) = (StreamBacklog::default(), StreamBacklog::default());
            backlog.some_left(24, &there);
            assert_eq!(left(), 1_024);
            there.read_exact(&mut [0; 600]).await.expect("there");
            backlog.received(600);
            backlog.some_left(0, &there);
            assert_eq!(left(), 1_024, "it was looked at just now");
            crate::time::sleep(LOOK_EVERY).await;
            backlog.some_left(0, &there);
            other.some_left(5, &here);
            assert_eq!((left(), crate::metrics::snapshot().input_received), (405, 600));
            drop(other);
            assert_eq!(left(), 400);
            backlog.none_left();
            assert_eq!(left(), 0);
            let waited = crate::metrics::snapshot().input_waited;
            let least = 1_024.0 * LOOK_EVERY.as_secs_f64();
            assert!(waited >= least, "{waited} of at least {least} bytes times seconds");
            crate::time::sleep(LOOK_EVERY).await;
            assert_eq!(crate::metrics::snapshot().input_waited, waited, "nothing is left");
        });
    }
}
