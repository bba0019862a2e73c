//! A stream with its own buffer, like an encrypted one: data is sent only when the loop flushes.

use super::drive;
use super::stream::ClientStream;
use super::tests::{Client, limits, query, run};
use cql::system::Encryption;
use rt::net::{AsyncRead, AsyncWrite, ReadBuf, UnreadInput};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::DuplexStream;

struct Buffered {
    inner: DuplexStream,
    held: Vec<u8>,
    /// The input that the socket would have.
    unread: usize,
}

impl AsyncRead for Buffered {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Buffered {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.held.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Buffered { inner, held, .. } = &mut *self;
        while !held.is_empty() {
            let n = ready!(Pin::new(&mut *inner).poll_write(cx, held))?;
            held.drain(..n);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl UnreadInput for Buffered {
    fn unread_input(&self) -> usize {
        self.unread
    }
}

impl ClientStream for Buffered {
    fn is_closed_by_client(&self) -> bool {
        false
    }
}

#[test]
fn responses_are_flushed_however_slowly_the_client_reads() {
    run(limits(), |world| async move {
        let (here, there) = tokio::io::duplex(100);
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let encryption = Encryption { protocol: "TLSv1.3".to_owned(), cipher: "any".to_owned() };
        let stream = Buffered { inner: there, held: Vec::new(), unread: 0 };
        rt::task::spawn(drive::serve(world.server.clone(), stream, peer, Some(encryption.clone()), None)).detach();
        let mut client = Client { stream: here };
        client.start(&[]).await;
        assert_eq!(world.server.transport.clients()[0].encryption, Some(encryption));
        for stream in 0..20 {
            client.send(&query(stream, "rows 3000")).await;
            let answer = client.receive().await;
            assert_eq!((answer.stream, answer.body.len()), (stream, 16 + 3000));
        }
        // An error that ends the connection is also sent.
        client.send(&[6; 9]).await;
        assert_eq!(client.receive().await.code(), 0x0A);
        assert!(client.receive_or_end().await.is_none());
    });
}

/// Otherwise the kernel resets the connection, and answers that it has not sent yet are lost.
#[test]
fn a_node_that_stops_reads_what_clients_sent_before_it_closes_their_connections() {
    run(limits(), |world| async move {
        let (here, there) = tokio::io::duplex(100);
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let stream = Buffered { inner: there, held: Vec::new(), unread: 9 };
        rt::task::spawn(drive::serve(world.server.clone(), stream, peer, None, None)).detach();
        let mut client = Client { stream: here };
        client.start(&[]).await;
        let server = world.server.clone();
        let stopped = rt::task::spawn(async move { server.stop().await });
        assert!(client.receive_or_end().await.is_none(), "no more answers come");
        client.send(&query(1, &"x".repeat(1000))).await;
        drop(client);
        stopped.await.expect("not aborted");
    });
}
