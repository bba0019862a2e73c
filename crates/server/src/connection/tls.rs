//! TLS for clients: from the operator's files to encrypted streams.
//!
//! The process's first thread reads the files, at the start and whenever one of them has changed ([`watch`]), and hands what they
//! mean to the shards. A shard encrypts its own connections: handshakes run where the connection will live, and nothing is
//! shared between shards while they do, neither locks nor session caches.

use cql::system::Encryption;
use rt::Remote;
use rt::net::TcpStream;
use rt::time::Duration;
use rustls::ServerConfig;
use rustls::server::ServerSessionMemoryCache;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use rt::tls::{Stamp, TlsFiles};

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The sessions that each shard remembers, so that clients that come back are served sooner.
const SESSIONS: usize = 256;

/// A shard's side of TLS.
pub struct Tls {
    acceptor: RefCell<TlsAcceptor>,
}

impl Tls {
    /// Encrypts as `config` says.
    pub fn new(config: &ServerConfig) -> Rc<Tls> {
        Rc::new(Tls { acceptor: RefCell::new(acceptor(config)) })
    }

    /// Encrypts new connections as `config` says.
    fn replace(&self, config: &ServerConfig) {
        self.acceptor.replace(acceptor(config));
    }

    /// The handshake with a client.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Encryption)> {
        let accept = self.acceptor.borrow().accept(stream);
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no handshake within {HANDSHAKE:?}"));
        let stream = rt::time::timeout(HANDSHAKE, accept).await.map_err(late)??;
        let session = stream.get_ref().1;
        // The names that TLS itself has for them: "TLSv1.3", "TLS_AES_256_GCM_SHA384".
        let protocol = match session.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2".to_owned(),
            Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3".to_owned(),
            other => format!("{other:?}"),
        };
        let suite = session.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
        let cipher = suite.unwrap_or_default().replace("TLS13_", "TLS_");
        Ok((stream, Encryption { protocol, cipher }))
    }
}

/// An acceptor with a session cache of its own.
fn acceptor(config: &ServerConfig) -> TlsAcceptor {
    let mut own = config.clone();
    own.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    TlsAcceptor::from(Arc::new(own))
}

/// Has every shard encrypt new connections as the files say, whenever these have changed since they were `known`, until dropped. For the
/// process's first thread.
pub async fn watch(files: TlsFiles, known: Stamp, remote: Remote) {
    let take = |config: Arc<ServerConfig>| {
        if let Some(tls) = rt::shard::try_service::<Tls>() {
            tls.replace(&config);
        }
    };
    files.watch(known, remote, take).await;
}
