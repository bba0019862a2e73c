//! TLS: loads the operator's PEM files into configurations for client ports ([`TlsFiles`]) and for
//! internode ([`PeerFiles`]).
//!
//! Reading files blocks, so the process's first thread does it at the start, and a thread of its
//! own whenever a [`Stamp`] shows that a file has changed. The result is passed to every shard,
//! which uses it for new connections. If changed files are invalid, the error is logged and the
//! shards keep the previous configuration. Certificates expire by the shard's clock.

mod own_files;
mod validity;

use crate::Remote;
use crate::net::TcpStream;
use crate::small_file;
use crate::time::Duration;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use validity::{Date, Validity};

pub use tokio_rustls::TlsStream;

/// The interval between checks of the files.
const LOOK: Duration = Duration::from_secs(1);
/// The interval between warnings about the dates of a certificate.
const REMIND: Duration = Duration::from_secs(24 * 60 * 60);

/// The PEM files for TLS with clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The node's certificate, and the intermediate ones up to the root.
    pub certificate: PathBuf,
    /// Its private key.
    pub keyfile: PathBuf,
    /// The roots of the certificates that clients must present. `None`: clients need no
    /// certificate.
    pub truststore: Option<PathBuf>,
}

/// Why TLS cannot be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or lacks a required item.
    #[error("{}: {why}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// The files do not match.
    #[error("{} with {}: {why}", certificate.display(), keyfile.display())]
    Unfit {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        keyfile: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Identifies the state of the files: device, inode, size and time of the last change of each.
/// `None` for a file that cannot be accessed.
pub type Stamp = Vec<Option<(u64, u64, u64, i64, i64)>>;

fn stamp<'a>(files: impl Iterator<Item = &'a Path>) -> Stamp {
    let stamp = |file: &Path| {
        let meta = std::fs::metadata(file).ok()?;
        Some((meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
    };
    files.map(stamp).collect()
}

/// The names for log lines about changed files.
struct Names<'a> {
    certificate: &'a Path,
    setting: &'static str,
    /// The connections that use them.
    connections: &'static str,
}

impl Names<'_> {
    /// Warns of each certificate in the file that has expired, expires soon or is not valid yet.
    fn warn_of_dates(&self) {
        let file = self.certificate.display();
        for warning in date_warnings(self.certificate, crate::time::wall_seconds()) {
            tracing::warn!(certificate = %file, "{}: the certificate {warning}", self.setting);
        }
    }
}

/// The warnings about the dates of the certificates in a file.
fn date_warnings(file: &Path, now: i64) -> Vec<String> {
    // A file that cannot be read is reported where it is loaded.
    let chain = own_files::chain(file).unwrap_or_default();
    chain.iter().filter_map(|certificate| Validity::of(certificate)?.warning(now)).collect()
}

/// Checks the files until dropped. When they differ from `known`, loads them and passes the result
/// to every shard.
async fn watch<T: Clone + Send + 'static>(
    names: Names<'_>,
    stamp: impl Fn() -> Stamp,
    load: impl Fn() -> Result<T, TlsError> + Clone + Send + 'static,
    mut known: Stamp,
    remote: Remote,
    take: impl Fn(T) + Clone + Send + 'static,
) {
    let Names { certificate, setting, connections } = names;
    let mut warned = crate::time::now();
    loop {
        crate::time::sleep(LOOK).await;
        let found = stamp();
        if found == known {
            if crate::time::now().duration_since(warned) >= REMIND {
                warned = crate::time::now();
                names.warn_of_dates();
            }
            continue;
        }
        // If a file changes while it is read, the next check notices it.
        known = found;
        let loaded = match small_file::on_own_thread("tls-reload", load.clone()).await {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::warn!(%error, "the changed files of {setting} cannot be read now; the node will try again");
                known.clear();
                continue;
            }
        };
        match loaded {
            Ok(loaded) => {
                let take = take.clone();
                let taken = remote.call_all(move || {
                    let (take, loaded) = (take.clone(), loaded.clone());
                    async move { take(loaded) }
                });
                if taken.await.is_ok() {
                    tracing::info!(certificate = %certificate.display(), "{connections} use the changed certificate");
                    names.warn_of_dates();
                    warned = crate::time::now();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the changed files of {setting} cannot be used; connections keep using the \
                 previous ones");
            }
        }
    }
}

impl TlsFiles {
    fn names(&self) -> Names<'_> {
        let (setting, connections) = ("client_encryption_options", "new connections");
        Names { certificate: &self.certificate, setting, connections }
    }

    /// Logs a warning if the certificate has expired, expires within 30 days or is not valid yet.
    /// Reads the file.
    pub fn warn_of_dates(&self) {
        self.names().warn_of_dates();
    }

    /// The current state of the files.
    pub fn stamp(&self) -> Stamp {
        stamp([&self.certificate, &self.keyfile].into_iter().chain(&self.truststore).map(PathBuf::as_path))
    }

    /// Reads the files. Blocks: not for shards.
    pub fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = provider();
        let key = own_files::key(&self.keyfile, &provider)?;
        let chain = own_files::chain(&self.certificate)?;
        let unfit = |error: rustls::Error| own_files::unfit(&self.certificate, &self.keyfile, &error);
        let builder = ServerConfig::builder_with_details(provider.clone(), Arc::new(Clock))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?;
        let builder = match &self.truststore {
            Some(truststore) => builder.with_client_cert_verifier(verifier(truststore, provider)?),
            None => builder.with_no_client_auth(),
        };
        builder.with_single_cert(chain, key).map(Arc::new).map_err(unfit)
    }

    /// Checks the files until dropped. When they have changed since `known`, loads them and passes
    /// the result to every shard. For the process's first thread.
    pub async fn watch(self, known: Stamp, remote: Remote, take: impl Fn(Arc<ServerConfig>) + Clone + Send + 'static) {
        let files = self.clone();
        watch(self.names(), || self.stamp(), move || files.load(), known, remote, take).await;
    }
}

/// The PEM files for TLS between nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerFiles {
    /// The node's certificate, and the intermediate ones up to the root. Presented by the accepting
    /// and by the connecting node.
    pub certificate: PathBuf,
    /// Its private key.
    pub keyfile: PathBuf,
    /// The roots of the other nodes' certificates.
    pub truststore: PathBuf,
    /// Whether connecting nodes must present a certificate.
    pub require_client_auth: bool,
}

impl PeerFiles {
    fn names(&self) -> Names<'_> {
        let (setting, connections) = ("server_encryption_options", "new connections between nodes");
        Names { certificate: &self.certificate, setting, connections }
    }

    /// Logs a warning if the certificate has expired, expires within 30 days or is not valid yet.
    /// Reads the file.
    pub fn warn_of_dates(&self) {
        self.names().warn_of_dates();
    }

    /// The current state of the files.
    pub fn stamp(&self) -> Stamp {
        stamp([&self.certificate, &self.keyfile, &self.truststore].into_iter().map(PathBuf::as_path))
    }

    /// Reads the files. Blocks: not for shards.
    pub fn load(&self) -> Result<PeerTls, TlsError> {
        let truststore = self.require_client_auth.then(|| self.truststore.clone());
        let accepting = TlsFiles { certificate: self.certificate.clone(), keyfile: self.keyfile.clone(), truststore };
        let mut acceptor = ServerConfig::clone(&*accepting.load()?);
        // Nodes connect rarely and stay connected, so sessions are not resumed.
        acceptor.session_storage = Arc::new(NoServerSessionStorage {});
        acceptor.send_tls13_tickets = 0;
        let provider = provider();
        let key = own_files::key(&self.keyfile, &provider)?;
        let chain = own_files::chain(&self.certificate)?;
        let unfit = |error: rustls::Error| own_files::unfit(&self.certificate, &self.keyfile, &error);
        let verifier = Arc::new(Chain { roots: own_files::roots(&self.truststore)?, provider: provider.clone() });
        let mut connector = ClientConfig::builder_with_details(provider, Arc::new(Clock))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(unfit)?;
        connector.resumption = Resumption::disabled();
        Ok(PeerTls { acceptor: Arc::new(acceptor), connector: Arc::new(connector) })
    }

    /// Checks the files until dropped. When they have changed since `known`, loads them and passes
    /// the result to every shard. For the process's first thread.
    pub async fn watch(self, known: Stamp, remote: Remote, take: impl Fn(PeerTls) + Clone + Send + 'static) {
        let files = self.clone();
        watch(self.names(), || self.stamp(), move || files.load(), known, remote, take).await;
    }
}

/// Both sides of TLS between nodes. Cheap to clone; clones may move to other shards.
#[derive(Clone, Debug)]
pub struct PeerTls {
    acceptor: Arc<ServerConfig>,
    connector: Arc<ClientConfig>,
}

impl PeerTls {
    /// The handshake with a node that connected to this one.
    pub async fn accept(&self, stream: TcpStream, limit: Duration) -> io::Result<TlsStream<TcpStream>> {
        let accept = TlsAcceptor::from(self.acceptor.clone()).accept(stream);
        let accepted = crate::time::timeout(limit, accept).await?;
        Ok(TlsStream::Server(accepted.map_err(with_dates)?))
    }

    /// The handshake with the node at `address`, to which this node connected.
    pub async fn connect(
        &self,
        stream: TcpStream,
        address: IpAddr,
        limit: Duration,
    ) -> io::Result<TlsStream<TcpStream>> {
        let connect = TlsConnector::from(self.connector.clone()).connect(ServerName::IpAddress(address.into()), stream);
        let connected = crate::time::timeout(limit, connect).await?;
        Ok(TlsStream::Client(connected.map_err(with_dates)?))
    }
}

/// Says in dates why a certificate of another node is not valid now. rustls counts seconds.
fn with_dates(error: io::Error) -> io::Error {
    use rustls::CertificateError::{ExpiredContext, NotValidYetContext};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let date = |time: &UnixTime| Date(time.as_secs() as i64);
    let why = match inner {
        Some(rustls::Error::InvalidCertificate(ExpiredContext { not_after, .. })) => {
            format!("its certificate has expired: it was valid until {}", date(not_after))
        }
        Some(rustls::Error::InvalidCertificate(NotValidYetContext { not_before, .. })) => {
            format!("its certificate is not valid yet: it is valid from {}", date(not_before))
        }
        _ => return error,
    };
    io::Error::new(error.kind(), why)
}

/// Accepts a node whose certificate is from one of the configured roots, whatever name it has.
/// Nodes move between addresses, and the internode handshake identifies them.
#[derive(Debug)]
struct Chain {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Chain {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn verifier(
    truststore: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    WebPkiClientVerifier::builder_with_provider(Arc::new(own_files::roots(truststore)?), provider)
        .build()
        .map_err(|error| TlsError::File { file: truststore.to_path_buf(), why: error.to_string() })
}

/// The clock for the expiry of certificates.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(crate::time::wall_seconds()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_certificate_of_a_node_is_reported_with_its_date() {
        let expired = rustls::CertificateError::ExpiredContext {
            time: UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000)),
            not_after: UnixTime::since_unix_epoch(Duration::from_secs(951_782_400)),
        };
        let error = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::InvalidCertificate(expired));
        let why = "its certificate has expired: it was valid until 2000-02-29T00:00:00Z";
        assert_eq!(with_dates(error).to_string(), why);
        let other = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let other = io::Error::new(io::ErrorKind::InvalidData, other);
        let before = other.to_string();
        assert_eq!(with_dates(other).to_string(), before);
    }

    #[test]
    fn errors_name_the_fault_in_the_files() {
        let dir = test_support::Scratch::new("tls");
        let file = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n";
        let certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        let (good_key, good) = (file("key", key), file("certificate", certificate));
        let (empty, broken) = (file("empty", ""), file("broken", "-----BEGIN CERTIFICATE-----\n#\n"));
        let missing = dir.join("missing");
        let cases = [
            (&good, &missing, None, "missing: No such file"),
            (&good, &empty, None, "there is no key in PEM in it"),
            (&missing, &good_key, None, "missing: No such file"),
            (&empty, &good_key, None, "there is no certificate in PEM in it"),
            (&broken, &good_key, None, "broken: not PEM"),
            (&good, &good_key, None, "certificate with"),
            (&good, &good_key, Some(&empty), "empty: there is no certificate"),
            (&good, &good_key, Some(&good), "certificate: "),
        ];
        for (certificate, keyfile, truststore, why) in cases {
            let files = TlsFiles {
                certificate: certificate.clone(),
                keyfile: keyfile.clone(),
                truststore: truststore.cloned(),
            };
            let message = files.load().map(|_| ()).map_err(|error| error.to_string());
            assert!(message.as_ref().is_err_and(|message| message.contains(why)), "{message:?} / {why}");
            let Some(truststore) = truststore else { continue };
            let peers = PeerFiles {
                certificate: certificate.clone(),
                keyfile: keyfile.clone(),
                truststore: truststore.clone(),
                require_client_auth: true,
            };
            let message = peers.load().map(|_| ()).map_err(|error| error.to_string());
            assert!(message.as_ref().is_err_and(|message| message.contains(why)), "{message:?} / {why}");
        }
        let files = TlsFiles { certificate: good.clone(), keyfile: good_key, truststore: None };
        let before = files.stamp();
        assert_eq!(files.stamp(), before);
        std::fs::rename(&empty, &good).expect("renamed");
        assert_ne!(files.stamp(), before);
    }
}
