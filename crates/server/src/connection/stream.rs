//! The byte stream of a client: a socket, encrypted or not.

use rt::net::{AsyncRead, AsyncWrite, TcpStream, UnreadInput};
use tokio_rustls::server::TlsStream;

/// The stream that a connection reads and writes.
pub trait ClientStream: AsyncRead + AsyncWrite + UnreadInput + Unpin {
    /// Whether the client has closed or reset the connection. Bytes that it sent before may still
    /// be there to read.
    fn is_closed_by_client(&self) -> bool;
}

impl ClientStream for TcpStream {
    fn is_closed_by_client(&self) -> bool {
        rt::net::is_closed_by_peer(self)
    }
}

impl ClientStream for TlsStream<TcpStream> {
    fn is_closed_by_client(&self) -> bool {
        rt::net::is_closed_by_peer(self.get_ref().0)
    }
}

/// The stream of tests, which shows its end only to its reader.
#[cfg(test)]
impl ClientStream for rt::net::DuplexStream {
    fn is_closed_by_client(&self) -> bool {
        false
    }
}
