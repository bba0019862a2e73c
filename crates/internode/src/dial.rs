//! Connects to another node, up to the first frame.

use super::Internode;
use super::config::{Between, Target};
use super::error::{CallError, Rejection, RejectionCode};
use super::frame;
use super::handshake::{
    Hello, LONGEST, PREAMBLE, Party, Preamble, Reply, SEAL, check, decode_answer, open, seal, sealed_len,
};
use super::metrics::count;
use super::socket::Socket;
use model::HostId;
use rt::net::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use serde::de::DeserializeOwned;
use std::io;
use std::net::SocketAddr;

/// An established connection.
pub(super) struct Dialled {
    pub socket: Socket,
    /// The other side.
    pub party: Party,
    /// The version of its frames.
    pub version: u8,
    /// Whether this node compresses the frames that it sends.
    pub compress: bool,
}

/// The target of the connection.
struct DialTarget {
    address: SocketAddr,
    host: Option<HostId>,
    shard: u16,
    encrypted: bool,
}

impl DialTarget {
    fn of(internode: &Internode, target: &Target) -> Result<DialTarget, CallError> {
        let setting = &internode.setting;
        let policy = setting.config.encryption;
        match target {
            Target::Host(peer, _) => {
                let book = internode.book();
                let found = book.peers.get(&peer.host).ok_or(CallError::NoAddress(peer.host))?;
                let encrypted = policy.applies(setting.place(), (&found.datacenter, &found.rack));
                Ok(DialTarget { address: found.address, host: Some(peer.host), shard: peer.shard, encrypted })
            }
            // The node at the address is unknown, so the policy cannot be applied. Encryption is
            // always allowed where it is configured.
            Target::Address(address) => {
                Ok(DialTarget { address: *address, host: None, shard: 0, encrypted: policy != Between::None })
            }
        }
    }
}

pub(super) async fn dial(internode: &Internode, target: &Target) -> Result<Dialled, CallError> {
    let dial_target = DialTarget::of(internode, target)?;
    let setting = &internode.setting;
    let unreachable = |why: String| CallError::Unreachable(why.into());
    let address = dial_target.address;
    let connect = rt::net::connect_from(setting.from, address);
    let stream = match rt::time::timeout(setting.config.connect_timeout, connect).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreachable(format!("cannot connect to {address}: {error}"))),
        Err(_) => return Err(unreachable(format!("cannot connect to {address}: no response"))),
    };
    let limit = setting.config.handshake_timeout;
    match rt::time::timeout(limit, shake_hands(internode, &dial_target, stream)).await {
        Ok(Err(CallError::Rejected(rejection))) => {
            count(&internode.counters.rejected);
            internode.report_rejection(&rejection, address.ip());
            Err(CallError::Rejected(rejection))
        }
        Ok(result) => result,
        Err(_) => Err(unreachable(format!("no handshake with {address} within {limit:?}"))),
    }
}

async fn shake_hands(
    internode: &Internode,
    dial_target: &DialTarget,
    mut stream: rt::net::TcpStream,
) -> Result<Dialled, CallError> {
    let setting = &internode.setting;
    let address = dial_target.address;
    let broken =
        |error: io::Error| CallError::Unreachable(format!("the handshake with {address} failed: {error}").into());
    let garbage = || {
        let why = format!("the server at {address} is not a node of Messina");
        CallError::Rejected(Rejection::new(RejectionCode::Garbage, why))
    };
    let preamble = Preamble { encrypted: dial_target.encrypted, shard: dial_target.shard };
    stream.write_all(&preamble.encode()).await.map_err(broken)?;
    let mut answer = [0; PREAMBLE];
    stream.read_exact(&mut answer).await.map_err(broken)?;
    decode_answer(&answer).ok_or_else(garbage)?.map_err(|code| {
        let why = match code {
            RejectionCode::NeedsTls => "accepts only encrypted connections (internode_encryption)",
            RejectionCode::NoTls => "has no encryption between nodes (internode_encryption: none)",
            RejectionCode::NotServing => "is not serving other nodes",
            _ => "refused the connection",
        };
        CallError::Rejected(Rejection::new(code, format!("the node at {address} {why}")))
    })?;
    let mut socket = if dial_target.encrypted {
        let tls = internode.tls.borrow().clone();
        let without =
            || Rejection::new(RejectionCode::Tls, "internode_encryption is set, but there are no certificates");
        let tls = tls.ok_or_else(|| CallError::Rejected(without()))?;
        let encrypted = tls.connect(stream, address.ip(), setting.config.handshake_timeout).await.map_err(|error| {
            let why = format!("no encrypted connection to the node at {address}: {error}");
            CallError::Rejected(Rejection::new(RejectionCode::Tls, why))
        })?;
        Socket::Encrypted(Box::new(encrypted))
    } else {
        Socket::Plain(stream)
    };
    let hello = Hello {
        versions: (frame::OLDEST, frame::VERSION),
        cluster: setting.own.cluster.clone(),
        from: Party::of(&setting.own, internode.shard, setting.shards),
        to: dial_target.host,
    };
    socket.write_all(&seal(&hello)).await.map_err(broken)?;
    socket.flush().await.map_err(broken)?;
    let reply = read_sealed::<Reply>(&mut socket).await.map_err(broken)?;
    let welcome = match reply.ok_or_else(garbage)? {
        Reply::Welcome(welcome) => welcome,
        Reply::Rejected(code, text) => {
            return Err(CallError::Rejected(Rejection::new(RejectionCode::from_code(code), text)));
        }
    };
    check(&setting.own, dial_target.host, &welcome).map_err(CallError::Rejected)?;
    let compress = setting.config.compression.applies(setting.place(), (&welcome.from.datacenter, &welcome.from.rack));
    Ok(Dialled { socket, party: welcome.from, version: welcome.version, compress })
}

/// Reads a sealed message; `None` if the bytes are not one.
pub(super) async fn read_sealed<T: DeserializeOwned>(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<T>> {
    let mut front = [0; SEAL];
    socket.read_exact(&mut front).await?;
    let Some(len) = sealed_len(&front) else { return Ok(None) };
    debug_assert!(len <= LONGEST + 4);
    let mut rest = vec![0; len];
    socket.read_exact(&mut rest).await?;
    Ok(open(&front, &rest))
}
