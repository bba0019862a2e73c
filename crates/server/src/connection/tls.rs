//! TLS for clients.
//!
//! The process's first thread reads the files at the start and whenever one of them changes
//! ([`watch`]), and passes the configuration to the shards. Each shard does the handshakes of its
//! own connections. Shards share no locks and no session caches.

use cql::system::Encryption;
use rt::Remote;
use rt::net::TcpStream;
use rt::shard::PerShard;
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

/// The timeout of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The number of TLS sessions that each shard caches, so that reconnecting is faster.
const SESSIONS: usize = 256;

/// The TLS configuration of a shard.
pub struct Tls {
    acceptor: RefCell<TlsAcceptor>,
}

impl Tls {
    /// Uses this configuration.
    pub fn new(config: &ServerConfig) -> Rc<Tls> {
        Rc::new(Tls { acceptor: RefCell::new(acceptor(config)) })
    }

    /// Uses this configuration for new connections.
    fn replace(&self, config: &ServerConfig) {
        self.acceptor.replace(acceptor(config));
    }

    /// Does the handshake with a client.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Encryption)> {
        let accept = self.acceptor.borrow().accept(stream);
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no handshake within {HANDSHAKE:?}"));
        let stream = rt::time::timeout(HANDSHAKE, accept).await.map_err(late)??;
        let session = stream.get_ref().1;
        // The standard names: "TLSv1.3", "TLS_AES_256_GCM_SHA384".
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

/// An acceptor with its own session cache.
fn acceptor(config: &ServerConfig) -> TlsAcceptor {
    let mut own = config.clone();
    own.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    TlsAcceptor::from(Arc::new(own))
}

/// Reloads the files on every shard whenever they differ from `known` or from the last version.
/// Runs until dropped, on the process's first thread.
pub async fn watch(shards: PerShard<Tls>, files: TlsFiles, known: Stamp, remote: Remote) {
    let take = move |config: Arc<ServerConfig>| {
        if let Some(tls) = shards.try_get() {
            tls.replace(&config);
        }
    };
    files.watch(known, remote, take).await;
}
