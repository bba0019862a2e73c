//! The byte format and the rules of the handshake. Pure.
//!
//! The connecting node sends a [`Preamble`] of 8 bytes, so that the socket can move to its shard
//! before anything else is parsed. The accepting node answers with 8 bytes. TLS follows if the
//! preamble requests it. Then come a [`Hello`] and a [`Reply`], each sealed: `u8 version, u32
//! length, body, u32 CRC32 of all before`, with the body in postcard's encoding. Fields are only
//! added at the end. After that, the connection carries frames.
//!
//! The accepting node decides ([`check_hello`]). If it rejects the connection, it sends the reason.
//! The connecting node checks the answer ([`check`] of the [`Welcome`]).

use super::config::{AddressBook, Between, Identity};
use super::error::{Rejection, RejectionCode};
use super::frame;
use model::id::HostId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The first bytes of every connection.
const MAGIC: [u8; 4] = *b"MSNA";
/// The length of a preamble and of its answer, in bytes.
pub const PREAMBLE: usize = 8;
/// The version of preamble, hello and reply.
const VERSION: u8 = 1;
/// The flag for TLS.
const TLS: u8 = 1;
/// The bytes in front of a sealed body.
pub const SEAL: usize = 5;
/// The maximum length of a hello or a reply, in bytes.
pub const LONGEST: usize = 64 << 10;

/// The first bytes of a connection: `"MSNA", u8 version, u8 flags, u16 shard`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preamble {
    /// TLS follows the answer.
    pub encrypted: bool,
    /// The requested shard.
    pub shard: u16,
}

impl Preamble {
    /// Encodes the preamble.
    pub fn encode(self) -> [u8; PREAMBLE] {
        let [low, high] = self.shard.to_le_bytes();
        [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION, if self.encrypted { TLS } else { 0 }, low, high]
    }

    /// Decodes a preamble; `None` if the bytes are not one. Later versions keep the first eight
    /// bytes.
    pub fn decode(bytes: &[u8; PREAMBLE]) -> Option<Preamble> {
        let [a, b, c, d, version, flags, low, high] = *bytes;
        ([a, b, c, d] == MAGIC && version > 0)
            .then(|| Preamble { encrypted: flags & TLS != 0, shard: u16::from_le_bytes([low, high]) })
    }
}

/// Encodes the answer to a preamble: `"MSNA", u8 version, u8 code, u16 0`. Code 0 accepts.
pub fn encode_answer(rejected: Option<RejectionCode>) -> [u8; PREAMBLE] {
    let code = rejected.map_or(0, |code| code as u8);
    [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION, code, 0, 0]
}

/// Decodes the answer to a preamble; `None` if the bytes are not one.
pub fn decode_answer(bytes: &[u8; PREAMBLE]) -> Option<Result<(), RejectionCode>> {
    let [a, b, c, d, version, code, _, _] = *bytes;
    if [a, b, c, d] != MAGIC || version == 0 {
        return None;
    }
    Some(if code == 0 { Ok(()) } else { Err(RejectionCode::from_code(code)) })
}

/// One side of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Party {
    /// The node.
    pub host: HostId,
    /// The shard.
    pub shard: u16,
    /// The number of the node's shards.
    pub shards: u16,
    /// The node's address for other nodes.
    pub address: SocketAddr,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// The cluster features that it supports.
    pub features: Vec<String>,
}

impl Party {
    /// A shard of this node.
    pub fn of(own: &Identity, shard: u16, shards: u16) -> Party {
        Party {
            host: own.host,
            shard,
            shards,
            address: own.address,
            datacenter: own.datacenter.clone(),
            rack: own.rack.clone(),
            features: own.features.clone(),
        }
    }
}

/// The message of the connecting node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The oldest and the newest version of frames that it supports.
    pub versions: (u8, u8),
    /// Its cluster.
    pub cluster: String,
    /// Its identity.
    pub from: Party,
    /// The node that it intends to reach.
    pub to: Option<HostId>,
}

/// The answer of the accepting node if it accepts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The version of the frames that follow.
    pub version: u8,
    /// Its identity.
    pub from: Party,
}

/// The answer of the accepting node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The connection is accepted.
    Welcome(Welcome),
    /// The connection is rejected: the number of a [`RejectionCode`], and a text.
    Rejected(u8, String),
}

impl Reply {
    /// Converts a decision to a reply.
    pub fn of(decision: &Result<Welcome, Rejection>) -> Reply {
        match decision {
            Ok(welcome) => Reply::Welcome(welcome.clone()),
            Err(rejection) => Reply::Rejected(rejection.code as u8, rejection.text.to_string()),
        }
    }
}

/// Encodes a hello or a reply, sealed.
pub fn seal<T: Serialize>(message: &T) -> Vec<u8> {
    // Postcard fails only on types of unknown length; these types are not among them.
    let body = postcard::to_stdvec(message).unwrap_or_default();
    let mut out = Vec::with_capacity(SEAL + body.len() + 4);
    out.push(VERSION);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&body);
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// The number of bytes that follow the front of a sealed body; `None` if it is invalid.
pub fn sealed_len(front: &[u8; SEAL]) -> Option<usize> {
    let len = u32::from_le_bytes([front[1], front[2], front[3], front[4]]) as usize;
    (front[0] > 0 && len <= LONGEST).then_some(len + 4)
}

/// Decodes a sealed message, of this or a later release.
pub fn open<T: DeserializeOwned>(front: &[u8; SEAL], rest: &[u8]) -> Option<T> {
    let (body, crc) = rest.split_last_chunk::<4>()?;
    if sealed_len(front) != Some(rest.len()) {
        return None;
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(front);
    hasher.update(body);
    if hasher.finalize() != u32::from_le_bytes(*crc) {
        return None;
    }
    postcard::take_from_bytes(body).ok().map(|(message, _)| message)
}

/// Decides whether to accept a connection from the sender of `hello` to `shard` of this node.
pub fn check_hello(
    own: &Identity,
    (shard, shards): (u16, u16),
    book: &AddressBook,
    encryption: (Between, bool),
    hello: &Hello,
) -> Result<Welcome, Rejection> {
    let reject = |code, why: String| Err(Rejection::new(code, why));
    let from = &hello.from;
    if hello.cluster != own.cluster {
        return reject(
            RejectionCode::Cluster,
            format!(
                "node {} at {} belongs to cluster '{}', node {} at {} to cluster '{}': set cluster_name to the same name \
                 on all nodes, and seeds to nodes of this cluster",
                from.host, from.address, hello.cluster, own.host, own.address, own.cluster
            ),
        );
    }
    let (oldest, newest) = hello.versions;
    let version = newest.min(frame::VERSION);
    if version < oldest.max(frame::OLDEST) {
        return reject(
            RejectionCode::Version,
            format!(
                "node {} at {} supports protocol versions {oldest} to {newest}, node {} at {} versions {} to {}",
                from.host,
                from.address,
                own.host,
                own.address,
                frame::OLDEST,
                frame::VERSION
            ),
        );
    }
    if from.host == own.host {
        if from.address == own.address {
            let why = format!("node {} at {} has connected to itself", own.host, own.address);
            return reject(RejectionCode::Itself, why);
        }
        let why = format!(
            "two nodes have the id {}: one at {}, one at {}; one of the two runs on a copy of the other's data directory",
            own.host, from.address, own.address
        );
        return reject(RejectionCode::Twin, why);
    }
    if let Some(to) = hello.to
        && to != own.host
    {
        let why = format!("node {to} is expected at {}, but node {} answers there", own.address, own.host);
        return reject(RejectionCode::Host, why);
    }
    if book.left.contains(&from.host) {
        let why = format!("node {} at {} has left the cluster and cannot come back", from.host, from.address);
        return reject(RejectionCode::Left, why);
    }
    let (policy, encrypted) = encryption;
    if !encrypted && policy.applies((&own.datacenter, &own.rack), (&from.datacenter, &from.rack)) {
        return reject(RejectionCode::NeedsTls, needs_tls(own));
    }
    Ok(Welcome { version, from: Party::of(own, shard, shards) })
}

/// The text for a node that connects without encryption.
pub fn needs_tls(own: &Identity) -> String {
    format!("node {} at {} accepts only encrypted connections (internode_encryption)", own.host, own.address)
}

/// The text for a node that connects with encryption.
pub fn no_tls(own: &Identity) -> String {
    format!("node {} at {} has no encryption between nodes (internode_encryption: none)", own.host, own.address)
}

/// The checks of the connecting node on the answer. `to` is the node that it intends to reach.
pub fn check(own: &Identity, to: Option<HostId>, welcome: &Welcome) -> Result<(), Rejection> {
    let from = &welcome.from;
    if from.host == own.host {
        return Err(Rejection::new(RejectionCode::Itself, format!("node {} has connected to itself", own.host)));
    }
    if let Some(to) = to
        && to != from.host
    {
        let why = format!("node {to} is expected at {}, but node {} answers there", from.address, from.host);
        return Err(Rejection::new(RejectionCode::Host, why));
    }
    if !(frame::OLDEST..=frame::VERSION).contains(&welcome.version) {
        let why = format!("node {} at {} answers in version {}", from.host, from.address, welcome.version);
        return Err(Rejection::new(RejectionCode::Version, why));
    }
    if from.shards == 0 {
        return Err(Rejection::new(RejectionCode::Garbage, format!("node {} reports no shards", from.host)));
    }
    Ok(())
}

/// For fuzzing: decodes arbitrary bytes as each message of a handshake.
pub fn fuzz_handshake(bytes: &[u8]) {
    if let Some(preamble) = bytes.first_chunk() {
        let _ = (Preamble::decode(preamble), decode_answer(preamble));
    }
    if let Some((front, rest)) = bytes.split_first_chunk() {
        let _ = (open::<Hello>(front, rest), open::<Reply>(front, rest));
    }
    let _ = (postcard::take_from_bytes::<Hello>(bytes), postcard::take_from_bytes::<Reply>(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn host(n: u128) -> HostId {
        HostId(Uuid::from_u128(n))
    }

    fn identity(n: u128) -> Identity {
        Identity {
            host: host(n),
            cluster: "Test".into(),
            address: ([127, 0, 0, n as u8], 7000).into(),
            datacenter: "dc1".into(),
            rack: "r1".into(),
            features: vec!["TABLETS".into()],
        }
    }

    fn hello() -> Hello {
        Hello { versions: (1, 1), cluster: "Test".into(), from: Party::of(&identity(2), 1, 2), to: Some(host(1)) }
    }

    fn code(hello: &Hello, encryption: (Between, bool)) -> Option<RejectionCode> {
        let book = AddressBook { left: [host(9)].into(), ..AddressBook::default() };
        check_hello(&identity(1), (0, 4), &book, encryption, hello).err().map(|rejection| rejection.code)
    }

    #[test]
    fn which_nodes_are_accepted_and_which_rejected() {
        let plain = (Between::None, false);
        assert_eq!(code(&hello(), plain), None);
        assert_eq!(code(&Hello { to: None, ..hello() }, plain), None);
        assert_eq!(code(&Hello { versions: (1, 9), ..hello() }, plain), None);
        assert_eq!(code(&Hello { versions: (2, 9), ..hello() }, plain), Some(RejectionCode::Version));
        assert_eq!(code(&Hello { cluster: "Other".into(), ..hello() }, plain), Some(RejectionCode::Cluster));
        assert_eq!(code(&Hello { to: Some(host(7)), ..hello() }, plain), Some(RejectionCode::Host));
        let from = |n: u128, datacenter: &str| {
            let own = Identity { datacenter: datacenter.into(), ..identity(n) };
            Hello { from: Party::of(&own, 0, 1), ..hello() }
        };
        assert_eq!(code(&from(1, "dc1"), plain), Some(RejectionCode::Itself));
        let mut copy = from(1, "dc1");
        copy.from.address = ([127, 0, 0, 9], 7000).into();
        assert_eq!(code(&copy, plain), Some(RejectionCode::Twin));
        assert_eq!(code(&from(9, "dc1"), plain), Some(RejectionCode::Left));
        assert_eq!(code(&from(2, "dc2"), (Between::Datacenters, false)), Some(RejectionCode::NeedsTls));
        assert_eq!(code(&from(2, "dc2"), (Between::Datacenters, true)), None);
        assert_eq!(code(&from(2, "dc1"), (Between::Datacenters, false)), None);
    }

    #[test]
    fn a_rejection_names_the_clusters_and_the_address() {
        let book = AddressBook::default();
        let foreign = Hello { cluster: "Other".into(), ..hello() };
        let rejection =
            check_hello(&identity(1), (0, 1), &book, (Between::None, false), &foreign).expect_err("foreign");
        let text = rejection.to_string();
        assert!(text.contains("'Other'") && text.contains("'Test'") && text.contains("127.0.0.2:7000"), "{text}");
        assert_eq!(Reply::of(&Err(rejection)), Reply::Rejected(1, text));
    }

    #[test]
    fn the_answer_is_checked() {
        let own = identity(2);
        let welcome = |n: u128, version| Welcome { version, from: Party::of(&identity(n), 0, 4) };
        let code = |to, welcome: &Welcome| check(&own, to, welcome).err().map(|rejection| rejection.code);
        assert_eq!(code(Some(host(1)), &welcome(1, 1)), None);
        assert_eq!(code(None, &welcome(3, 1)), None);
        assert_eq!(code(Some(host(1)), &welcome(3, 1)), Some(RejectionCode::Host));
        assert_eq!(code(None, &welcome(2, 1)), Some(RejectionCode::Itself));
        assert_eq!(code(None, &welcome(3, 7)), Some(RejectionCode::Version));
    }

    #[test]
    fn preambles_and_answers_round_trip() {
        for (encrypted, shard) in [(false, 0), (true, 7), (false, u16::MAX)] {
            let preamble = Preamble { encrypted, shard };
            assert_eq!(Preamble::decode(&preamble.encode()), Some(preamble));
        }
        assert_eq!(decode_answer(&encode_answer(None)), Some(Ok(())));
        let rejected = Some(Err(RejectionCode::NeedsTls));
        assert_eq!(decode_answer(&encode_answer(Some(RejectionCode::NeedsTls))), rejected);
        for garbage in [b"GET / HT", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\0\0\0\0\0\0\0\0"] {
            assert_eq!(Preamble::decode(garbage), None);
            assert_eq!(decode_answer(garbage), None);
        }
    }

    fn split(bytes: &[u8]) -> Option<(&[u8; SEAL], &[u8])> {
        bytes.split_first_chunk()
    }

    #[test]
    fn only_unchanged_sealed_messages_open() {
        let sealed = seal(&hello());
        let (front, rest) = split(&sealed).expect("long enough");
        assert_eq!(open::<Hello>(front, rest), Some(hello()));
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let (front, rest) = split(&bad).expect("long enough");
            assert_eq!(open::<Hello>(front, rest), None, "bit {bit}");
        }
        for len in SEAL..sealed.len() {
            let (front, rest) = split(&sealed[..len]).expect("long enough");
            assert_eq!(open::<Hello>(front, rest), None, "{len} bytes");
        }
    }

    #[test]
    fn a_later_release_may_add_fields() {
        #[derive(Serialize)]
        struct Later(Hello, u64, String);
        let sealed = seal(&Later(hello(), 5, "more".into()));
        let (front, rest) = split(&sealed).expect("long enough");
        assert_eq!(open::<Hello>(front, rest), Some(hello()));
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_handshake(&bytes);
        }
    }
}
