//! How two nodes come to terms, byte by byte. Pure.
//!
//! The node that connects sends a [`Preamble`] of 8 bytes, so that the socket finds its shard before anything is understood; the other
//! answers with 8 bytes. If they say so, TLS begins. Then a [`Hello`] and a [`Reply`], each sealed: `u8 version, u32 length, body, u32 CRC32
//! of all before`, the body in postcard's encoding; fields are only ever added at the end. From there on frames.
//!
//! The node that was connected to decides ([`judge`]) and tells the other why, if it will not have it; the node that has connected checks
//! what it was told ([`Welcome`]).

use super::config::{AddressBook, Between, Identity};
use super::error::{Rejection, RejectionCode};
use super::frame;
use model::id::HostId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What every connection begins with.
const MAGIC: [u8; 4] = *b"MSNA";
/// The bytes of a preamble, and of its answer.
pub const PREAMBLE: usize = 8;
/// The version of preamble, hello and reply.
const VERSION: u8 = 1;
/// TLS follows.
const TLS: u8 = 1;
/// The bytes in front of a sealed body.
pub const SEAL: usize = 5;
/// The longest hello or reply.
pub const LONGEST: usize = 64 << 10;

/// The first bytes of a connection: `"MSNA", u8 version, u8 flags, u16 shard`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preamble {
    /// TLS follows the answer.
    pub encrypted: bool,
    /// The shard that is meant.
    pub shard: u16,
}

impl Preamble {
    /// Its bytes.
    pub fn encode(self) -> [u8; PREAMBLE] {
        let [low, high] = self.shard.to_le_bytes();
        [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION, if self.encrypted { TLS } else { 0 }, low, high]
    }

    /// From bytes; none if they are something else. Versions to come keep the first eight bytes.
    pub fn decode(bytes: &[u8; PREAMBLE]) -> Option<Preamble> {
        let [a, b, c, d, version, flags, low, high] = *bytes;
        ([a, b, c, d] == MAGIC && version > 0)
            .then(|| Preamble { encrypted: flags & TLS != 0, shard: u16::from_le_bytes([low, high]) })
    }
}

/// The answer to a preamble: `"MSNA", u8 version, u8 code, u16 0`; code 0 means: go on.
pub fn encode_answer(rejected: Option<RejectionCode>) -> [u8; PREAMBLE] {
    let code = rejected.map_or(0, |code| code as u8);
    [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION, code, 0, 0]
}

/// What an answer says: none if it is something else.
pub fn decode_answer(bytes: &[u8; PREAMBLE]) -> Option<Result<(), RejectionCode>> {
    let [a, b, c, d, version, code, _, _] = *bytes;
    if [a, b, c, d] != MAGIC || version == 0 {
        return None;
    }
    Some(if code == 0 { Ok(()) } else { Err(RejectionCode::from_code(code)) })
}

/// Who is on a side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Party {
    /// The node.
    pub host: HostId,
    /// The shard.
    pub shard: u16,
    /// How many the node has.
    pub shards: u16,
    /// Where the node can be found.
    pub address: SocketAddr,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// The features of the cluster that it supports.
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

/// What the node that connects says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The oldest and the newest version of frames that it speaks.
    pub versions: (u8, u8),
    /// Its cluster.
    pub cluster: String,
    /// Who it is.
    pub from: Party,
    /// Whom it thinks to have reached.
    pub to: Option<HostId>,
}

/// What the other answers if it agrees.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The version of the frames to come.
    pub version: u8,
    /// Who it is.
    pub from: Party,
}

/// What the other answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It agrees.
    Welcome(Welcome),
    /// It does not: the number of a [`RejectionCode`] and a text.
    Rejected(u8, String),
}

impl Reply {
    /// As what a caller acts on.
    pub fn of(judged: &Result<Welcome, Rejection>) -> Reply {
        match judged {
            Ok(welcome) => Reply::Welcome(welcome.clone()),
            Err(rejection) => Reply::Rejected(rejection.code as u8, rejection.text.to_string()),
        }
    }
}

/// A hello or a reply as it goes over the wire.
pub fn seal<T: Serialize>(message: &T) -> Vec<u8> {
    // Postcard fails on types that it cannot know the length of; these are none.
    let body = postcard::to_stdvec(message).unwrap_or_default();
    let mut out = Vec::with_capacity(SEAL + body.len() + 4);
    out.push(VERSION);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&body);
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// How many bytes follow those in front of a sealed body; none if they are something else.
pub fn sealed_len(front: &[u8; SEAL]) -> Option<usize> {
    let len = u32::from_le_bytes([front[1], front[2], front[3], front[4]]) as usize;
    (front[0] > 0 && len <= LONGEST).then_some(len + 4)
}

/// Opens what [`seal`] has made, in this release or in a later one.
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

/// Whether the node that sent `hello` is welcome on `shard` of this one.
pub fn judge(
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
                "node {} at {} belongs to cluster '{}', node {} at {} to cluster '{}'",
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
                "node {} at {} speaks versions {oldest} to {newest} between nodes, node {} at {} versions {} to {}",
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
        let why = format!("node {to} is looked for at {}, but there is node {} now", own.address, own.host);
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

/// What a node says to one that does not encrypt.
pub fn needs_tls(own: &Identity) -> String {
    format!("node {} at {} takes encrypted connections only (internode_encryption)", own.host, own.address)
}

/// What a node says to one that wants to encrypt.
pub fn no_tls(own: &Identity) -> String {
    format!("node {} at {} has no encryption between nodes (internode_encryption: none)", own.host, own.address)
}

/// What the node that has connected checks of the answer.
pub fn check(own: &Identity, to: Option<HostId>, welcome: &Welcome) -> Result<(), Rejection> {
    let from = &welcome.from;
    if from.host == own.host {
        return Err(Rejection::new(RejectionCode::Itself, format!("node {} has connected to itself", own.host)));
    }
    if let Some(to) = to
        && to != from.host
    {
        let why = format!("node {to} is looked for at {}, but there is node {} now", from.address, from.host);
        return Err(Rejection::new(RejectionCode::Host, why));
    }
    if !(frame::OLDEST..=frame::VERSION).contains(&welcome.version) {
        let why = format!("node {} at {} answers in version {}", from.host, from.address, welcome.version);
        return Err(Rejection::new(RejectionCode::Version, why));
    }
    if from.shards == 0 {
        return Err(Rejection::new(RejectionCode::Garbage, format!("node {} says it has no shards", from.host)));
    }
    Ok(())
}

/// For fuzzing: everything of a handshake out of any bytes.
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
        judge(&identity(1), (0, 4), &book, encryption, hello).err().map(|rejection| rejection.code)
    }

    #[test]
    fn who_is_welcome_and_who_is_not() {
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
    fn a_rejection_says_who_and_what() {
        let book = AddressBook::default();
        let foreign = Hello { cluster: "Other".into(), ..hello() };
        let said = judge(&identity(1), (0, 1), &book, (Between::None, false), &foreign).expect_err("foreign");
        let text = said.to_string();
        assert!(text.contains("'Other'") && text.contains("'Test'") && text.contains("127.0.0.2:7000"), "{text}");
        assert_eq!(Reply::of(&Err(said)), Reply::Rejected(1, text));
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
    fn preambles_and_answers_come_back() {
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
    fn what_was_sealed_opens_and_nothing_else() {
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
