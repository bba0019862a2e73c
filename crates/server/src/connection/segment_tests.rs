//! Connections in version 5: STARTUP without segments, then segments; and the features of version
//! 5.

use super::tests::{Client, Frame, World, limits, query_body, raw, run, string_map, table_made};
use crate::protocol::Opcode;
use crate::protocol::segment::{self, Form, Header, Taken};
use bytes::BytesMut;
use std::collections::VecDeque;
use tokio::io::AsyncReadExt;

/// A client after its STARTUP: in version 5, or, without segments, in version 4.
pub(super) struct Speaker {
    client: Client,
    form: Option<Form>,
    input: BytesMut,
    frames: VecDeque<Frame>,
    /// Payloads of segments with an incomplete frame.
    begun: Vec<u8>,
}

fn segment(form: Form, payload: &[u8], self_contained: bool) -> Vec<u8> {
    let closed = if form == Form::Lz4 { segment::close(payload) } else { None };
    let bytes = closed.as_deref().unwrap_or(payload);
    let opened = closed.as_ref().map_or(0, |_| payload.len());
    let mut out = vec![0; form.header_len()];
    Header { payload: bytes.len(), opened, self_contained }.write(form, &mut out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(&segment::payload_crc(&[bytes]).to_le_bytes());
    out
}

fn query(stream: i16, text: &str) -> Vec<u8> {
    raw(5, 0, stream, Opcode::Query as u8, &[&query_body(text)[..], &[0, 0, 0]].concat())
}

impl Speaker {
    pub(super) async fn start(world: &World, form: Option<Form>, options: &[(&str, &str)]) -> Speaker {
        let mut client = world.connect();
        let compression: &[(&str, &str)] = if form == Some(Form::Lz4) { &[("COMPRESSION", "lz4")] } else { &[] };
        let all = [&[("CQL_VERSION", "3.0.0")], compression, options].concat();
        let version = if form.is_some() { 5 } else { 4 };
        let ready = client.ask(&raw(version, 0, 0, Opcode::Startup as u8, &string_map(&all))).await;
        assert_eq!((ready.opcode, ready.version), (Opcode::Ready as u8, 0x80 | version));
        Speaker { client, form, input: BytesMut::new(), frames: VecDeque::new(), begun: Vec::new() }
    }

    pub(super) async fn send(&mut self, frames: &[u8]) {
        let Some(form) = self.form else { return self.client.send(frames).await };
        let bytes = if frames.len() <= form.max_payload() {
            segment(form, frames, true)
        } else {
            frames.chunks(form.max_payload()).flat_map(|part| segment(form, part, false)).collect()
        };
        self.client.send(&bytes).await;
    }

    /// Sends a part of a frame in a segment of its own.
    pub(super) async fn send_part(&mut self, part: &[u8]) {
        let form = self.form.expect("segments");
        self.client.send(&segment(form, part, false)).await;
    }

    pub(super) async fn receive_or_end(&mut self) -> Option<Frame> {
        let Some(form) = self.form else { return self.client.receive_or_end().await };
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            match segment::take(form, &mut self.input) {
                Taken::Segment(segment) => {
                    self.begun.extend_from_slice(&segment.payload);
                    self.cut();
                    assert!(!segment.self_contained || self.begun.is_empty());
                }
                Taken::Incomplete(_) => {
                    if self.client.stream.read_buf(&mut self.input).await.ok()? == 0 {
                        return None;
                    }
                }
                Taken::Damaged(why) => panic!("{why}"),
            }
        }
    }

    fn cut(&mut self) {
        while let [version, flags, s0, s1, opcode, l0, l1, l2, l3, rest @ ..] = &self.begun[..] {
            let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
            if rest.len() < len {
                return;
            }
            let stream = i16::from_be_bytes([*s0, *s1]);
            let body = rest[..len].to_vec();
            self.frames.push_back(Frame { version: *version, flags: *flags, stream, opcode: *opcode, body });
            self.begun.drain(..9 + len);
        }
    }

    async fn ask(&mut self, frame: &[u8]) -> Frame {
        self.send(frame).await;
        self.receive_or_end().await.expect("an answer, not the end")
    }
}

#[test]
fn a_conversation_in_segments() {
    for form in [Form::Plain, Form::Lz4] {
        run(limits(), |world| async move {
            let mut client = Speaker::start(&world, Some(form), &[]).await;
            let supported = client.ask(&raw(5, 0, 9, Opcode::Options as u8, &[])).await;
            assert_eq!((supported.version, supported.opcode, supported.stream), (0x85, Opcode::Supported as u8, 9));
            assert!(!String::from_utf8_lossy(&supported.body).contains("snappy"));
            // Several requests in a segment, long answers, a long request.
            client.send(&[query(1, "rows 10"), query(2, "rows 20000"), query(3, "rows 300000")].concat()).await;
            for (stream, len) in [(1, 10), (2, 20_000), (3, 300_000)] {
                let frame = client.receive_or_end().await.expect("an answer");
                assert_eq!((frame.stream, frame.body.len(), frame.flags), (stream, 16 + len, 0));
                assert!(frame.body[16..].iter().all(|byte| *byte == b'r'));
            }
            let long = format!("nonsense{}", " ".repeat(400_000));
            let refused = client.ask(&query(4, &long)).await;
            assert_eq!((refused.stream, refused.code()), (4, 0x2000));
            assert_eq!(client.ask(&query(5, "nonsense")).await.code(), 0x2000);
            // The compression bit of a frame has no meaning.
            let mut marked = query(6, "rows 7");
            marked[1] = 1;
            assert_eq!(client.ask(&marked).await.body.len(), 16 + 7);
            let known = &world.server.transport.connections()[0];
            assert_eq!(known.info().protocol_version, 5);
            let register = raw(5, 0, 7, Opcode::Register as u8, b"\0\x01\0\x0dSCHEMA_CHANGE");
            assert_eq!(client.ask(&register).await.opcode, Opcode::Ready as u8);
            assert_eq!(client.ask(&query(8, "ddl t")).await.body[..4], [0, 0, 0, 5]);
            crate::events::broadcast(world.servers, vec![table_made()]).await;
            let event = client.receive_or_end().await.expect("an event");
            assert_eq!((event.stream, event.version, event.opcode), (-1, 0x85, Opcode::Event as u8));
        });
    }
}

#[test]
fn a_startup_that_fails_can_be_tried_again_without_segments() {
    run(limits(), |world| async move {
        let mut client = world.connect();
        let supported = client.ask(&raw(5, 0, 1, Opcode::Options as u8, &[])).await;
        assert_eq!((supported.opcode, supported.version), (Opcode::Supported as u8, 0x85));
        let body = string_map(&[("CQL_VERSION", "3.0.0"), ("COMPRESSION", "snappy")]);
        let refused = client.ask(&raw(5, 0, 2, Opcode::Startup as u8, &body)).await;
        assert_eq!((refused.code(), refused.version), (0x0A, 0x85));
        assert!(refused.message().contains("lz4 only, not with snappy"), "{}", refused.message());
        let ready = client.ask(&raw(5, 0, 3, Opcode::Startup as u8, &string_map(&[("CQL_VERSION", "3.0.0")]))).await;
        assert_eq!(ready.opcode, Opcode::Ready as u8);
        client.send(&segment(Form::Plain, &query(4, "rows 3"), true)).await;
        let mut rest = vec![0; Form::Plain.header_len() + 9 + 16 + 3 + segment::TRAILER_LEN];
        client.stream.read_exact(&mut rest).await.expect("a segment");
    });
}

#[test]
fn bad_segments_are_answered_and_end_the_connection() {
    let good = || segment(Form::Plain, &query(1, "rows 1"), true);
    let with = |at: usize| {
        let mut bytes = good();
        bytes[at] ^= 0x10;
        bytes
    };
    let cases = [
        (with(0), "Damaged segment: the CRC24 of its header"),
        (with(20), "Damaged segment: the CRC32 of its payload"),
        (segment(Form::Plain, &query(1, "rows 1")[..20], true), "ends within a frame"),
        (query(1, "rows 1"), "Damaged segment"),
        (segment(Form::Plain, &raw(66, 0, 1, Opcode::Options as u8, &[]), true), "protocol version (66)"),
    ];
    run(limits(), |world| async move {
        for (bytes, why) in cases {
            let mut client = Speaker::start(&world, Some(Form::Plain), &[]).await;
            client.client.send(&bytes).await;
            let refused = client.receive_or_end().await.expect("an error");
            assert_eq!((refused.code(), refused.version), (0x0A, 0x85), "{why}");
            assert!(refused.message().contains(why), "{} / {why}", refused.message());
            assert!(client.receive_or_end().await.is_none(), "{why}");
        }
    });
}

#[test]
fn another_version_within_segments_is_refused() {
    run(limits(), |world| async move {
        let mut client = Speaker::start(&world, Some(Form::Plain), &[]).await;
        let refused = client.ask(&raw(4, 0, 1, Opcode::Query as u8, &query_body("rows 1"))).await;
        assert_eq!(refused.code(), 0x0A);
        assert!(refused.message().contains("Got 4/v4 but previous messages on this connection had version 5/v5"));
        assert_eq!(client.ask(&query(2, "rows 3")).await.stream, 2);
    });
}

#[test]
fn a_request_can_set_its_keyspace_and_now_in_seconds() {
    run(limits(), |world| async move {
        let mut client = Speaker::start(&world, Some(Form::Plain), &[]).await;
        client.ask(&query(1, "use k")).await;
        let text = |text: &str| [&(text.len() as i32).to_be_bytes()[..], text.as_bytes()].concat();
        let ask = async |client: &mut Speaker, opcode: Opcode, body: Vec<u8>| {
            client.ask(&raw(5, 0, 2, opcode as u8, &body)).await.message()
        };
        let own = [text("where"), b"\0\x01\0\0\x01\x80\0\x05other\0\0\0\x07".to_vec()].concat();
        assert_eq!(ask(&mut client, Opcode::Query, own).await, "in 'other' at Some(7)");
        let plain = [text("where"), b"\0\x01\0\0\0\0".to_vec()].concat();
        assert_eq!(ask(&mut client, Opcode::Query, plain).await, "in 'k' at None");
        let prepare = [text("where"), b"\0\0\0\x01\0\x05other".to_vec()].concat();
        assert_eq!(ask(&mut client, Opcode::Prepare, prepare).await, "in 'other'");
        assert_eq!(ask(&mut client, Opcode::Prepare, [text("where"), vec![0; 4]].concat()).await, "in 'k'");
        let batch = b"\0\0\0\0\x01\0\0\0\x80\0\x05other".to_vec();
        assert_eq!(ask(&mut client, Opcode::Batch, batch).await, "in 'other'");
        // A USE in a statement with its own keyspace still applies to the connection.
        let used = [text("use another"), b"\0\x01\0\0\0\x80\0\x05other".to_vec()].concat();
        client.ask(&raw(5, 0, 3, Opcode::Query as u8, &used)).await;
        assert_eq!(world.server.transport.connections()[0].client.keyspace.borrow().as_deref(), Some("another"));
    });
}

/// The results of the fake have no columns. The id is that of an empty description.
#[test]
fn ids_of_metadata_in_version_5_and_where_they_were_negotiated() {
    const MARK: (&str, &str) = ("SCYLLA_LWT_ADD_METADATA_MARK", "2147483648");
    const IDS: (&str, &str) = ("SCYLLA_USE_METADATA_ID", "");
    let cases = [
        (Some(Form::Plain), vec![MARK, IDS], 0x80),
        (Some(Form::Lz4), vec![], 0),
        (None, vec![MARK, IDS], 0x80),
        (None, vec![IDS], 0),
    ];
    run(limits(), |world| async move {
        for (form, options, mark) in cases {
            let mut client = Speaker::start(&world, form, &options).await;
            let (version, flags, skip): (u8, &[u8], &[u8]) = match form {
                Some(_) => (5, &[0, 0, 0, 0], &[0, 0, 0, 2]),
                None => (4, &[], &[2]),
            };
            let text = [&b"\0\0\0\x02IF"[..], flags].concat();
            let prepared = client.ask(&raw(version, 0, 1, Opcode::Prepare as u8, &text)).await.body;
            assert_eq!(prepared[22..24], [0, 16], "the length of the metadata's id");
            assert_eq!(prepared[40..44], [mark, 0, 0, 0], "version {version}");
            let id = &prepared[24..40];
            let execute = |known: &[u8]| {
                let body = [&b"\0\x10"[..], &[5; 16], &[0, known.len() as u8], known, b"\0\x01", skip].concat();
                raw(version, 0, 2, Opcode::Execute as u8, &body)
            };
            let same = client.ask(&execute(id)).await.body;
            assert_eq!(same, b"\0\0\0\x02\0\0\0\x04\0\0\0\0\0\0\0\x01rrr");
            let changed = [&b"\0\0\0\x02\0\0\0\x08\0\0\0\0\0\x10"[..], id, b"\0\0\0\x01rrr"].concat();
            for known in [&[][..], &[1; 16], &[1; 20]] {
                assert_eq!(client.ask(&execute(known)).await.body, changed, "version {version}, {known:?}");
            }
        }
    });
}
