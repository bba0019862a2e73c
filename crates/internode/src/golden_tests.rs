//! This release reads what release 0.1.0 sends between nodes, and sends the same bytes.
//! `tests/golden/internode-0.1.0.txt` has a line with a name and bytes for each message. A release
//! that sends something else gets its own file beside it.

use super::config::{Identity, Verb};
use super::error::{Rejection, RejectionCode};
use super::frame::{Frame, Frames, Head, Kind, VERSION, put_whole};
use super::handshake::{Hello, Party, Preamble, Reply, Welcome, decode_answer, encode_answer, open, seal};
use bytes::{Bytes, BytesMut};
use model::HostId;
use std::collections::BTreeMap;
use uuid::Uuid;

const GOLDEN: &str = include_str!("../tests/golden/internode-0.1.0.txt");

fn party(n: u8) -> Party {
    let own = Identity {
        host: HostId(Uuid::from_bytes([n; 16])),
        cluster: "Messina".into(),
        address: ([127, 0, 0, n], 7000).into(),
        datacenter: "datacenter1".into(),
        rack: format!("rack{n}"),
        features: vec!["ONE".into(), "TWO".into()],
    };
    Party::of(&own, u16::from(n) - 1, 300)
}

fn hello() -> Hello {
    Hello { versions: (1, 1), cluster: "Messina".into(), from: party(1), to: Some(party(2).host) }
}

fn frames() -> Vec<(&'static str, Frame, bool)> {
    let frame = |kind, verb, time_left, body: &[u8]| Frame {
        head: Head { kind, verb, stream: 0x0102_0304_0506_0708, time_left },
        body: Bytes::copy_from_slice(body),
    };
    vec![
        ("request", frame(Kind::Request, Verb::Replica as u8, 5_000_000, b"a body"), false),
        ("request-compressed", frame(Kind::Request, Verb::Stream as u8, 1, &[b'z'; 1000]), true),
        ("response", frame(Kind::Response, 0, 0, b""), false),
        ("error", frame(Kind::Error, 0, 0, b"\x03too late"), false),
        ("cancel", frame(Kind::Cancel, 0, 0, b""), false),
        ("alive", frame(Kind::Alive, 0, 0, b""), false),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("hexadecimal"))
        .collect()
}

fn golden() -> BTreeMap<String, Vec<u8>> {
    GOLDEN
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, bytes)| (name.to_owned(), unhex(bytes)))
        .collect()
}

#[test]
fn this_release_sends_the_same_bytes_as_0_1_0() {
    let welcome = Welcome { version: 1, from: party(2) };
    let rejection = Rejection::new(RejectionCode::Cluster, "another cluster");
    let mut sent = vec![
        ("preamble", Preamble { encrypted: false, shard: 5 }.encode().to_vec()),
        ("preamble-encrypted", Preamble { encrypted: true, shard: 256 }.encode().to_vec()),
        ("answer", encode_answer(None).to_vec()),
        ("answer-needs-tls", encode_answer(Some(RejectionCode::NeedsTls)).to_vec()),
        ("hello", seal(&hello())),
        ("welcome", seal(&Reply::of(&Ok(welcome)))),
        ("rejected", seal(&Reply::of(&Err(rejection)))),
    ];
    for (name, frame, compress) in frames() {
        let mut out = BytesMut::new();
        put_whole(&mut out, frame.head, &frame.body, compress);
        sent.push((name, out.to_vec()));
    }
    let text: String = sent.iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    assert!(text == GOLDEN, "sent now:\n{text}");
}

#[test]
fn this_release_reads_the_bytes_of_0_1_0() {
    let golden = golden();
    let eight = |name: &str| golden[name].first_chunk::<8>().expect("eight bytes");
    assert_eq!(Preamble::decode(eight("preamble")), Some(Preamble { encrypted: false, shard: 5 }));
    assert_eq!(Preamble::decode(eight("preamble-encrypted")), Some(Preamble { encrypted: true, shard: 256 }));
    assert_eq!(decode_answer(eight("answer")), Some(Ok(())));
    assert_eq!(decode_answer(eight("answer-needs-tls")), Some(Err(RejectionCode::NeedsTls)));
    let sealed = |name: &str| golden[name].split_first_chunk::<5>().expect("long enough");
    let (front, rest) = sealed("hello");
    assert_eq!(open::<Hello>(front, rest), Some(hello()));
    let (front, rest) = sealed("welcome");
    assert_eq!(open::<Reply>(front, rest), Some(Reply::Welcome(Welcome { version: 1, from: party(2) })));
    let (front, rest) = sealed("rejected");
    assert_eq!(open::<Reply>(front, rest), Some(Reply::Rejected(1, "another cluster".into())));
    for (name, frame, _) in frames() {
        let mut reader = Frames::new(VERSION, 1 << 20);
        reader.space().extend_from_slice(&golden[name]);
        assert_eq!(reader.next_frame(), Ok(Some(frame)), "{name}");
    }
}
