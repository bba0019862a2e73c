//! The answers of a connection that wait to be written.
//!
//! Small answers are appended to one buffer. Large rows are queued as they came from the engine,
//! without a copy, unless they are compressed. In version 5, frames are appended to an open
//! segment, which is sealed when it is written (`seal`). The connection writes what waits with
//! [`Outbox::flush`].

use super::request::{PAGE_INFO, RATE_LIMIT_INFO};
use super::{Compression, Event, Opcode, Version, compression, error, flag, result, write};
use bytes::{BufMut, Bytes};
use cql::Error;
use cql::api::{MetadataId, Prepared, StatementResult};
use rt::WriteQueue;
use rt::net::AsyncWrite;
use seal::Sealing;
use std::io;
use std::net::IpAddr;
use std::task::Context;
use uuid::Uuid;

mod seal;

/// Rows of at least this many bytes are queued instead of copied.
const LARGE: usize = WriteQueue::LARGE;

/// How to answer a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The version of the request.
    pub version: Version,
    /// The stream of the request.
    pub stream: i16,
    /// The negotiated compression.
    pub compression: Option<Compression>,
    /// The id of the trace, if the request is traced.
    pub trace: Option<Uuid>,
    /// The client negotiated the rate limit error.
    pub rate_limit: bool,
    /// The client requests the numbers of a refusal by a rate limit.
    pub rate_limit_info: bool,
    /// The client needs no column descriptions.
    pub skip_metadata: bool,
    /// The id of the result metadata that the client knows, if negotiated.
    pub metadata_id: Option<MetadataId>,
    /// The answer to PREPARE includes the id of the result metadata.
    pub metadata_ids: bool,
    /// The answer to PREPARE marks conditional statements.
    pub lwt_mark: bool,
}

impl Reply {
    /// A reply without negotiated options.
    pub fn plain(version: Version, stream: i16) -> Reply {
        Reply {
            version,
            stream,
            compression: None,
            trace: None,
            rate_limit: false,
            rate_limit_info: false,
            skip_metadata: false,
            metadata_id: None,
            metadata_ids: version >= Version::V5,
            lwt_mark: false,
        }
    }
}

/// The custom payload of an answer.
#[derive(Clone, Copy)]
struct Payload<'a> {
    tablet: Option<&'a [u8]>,
    page_info: Option<&'a [u8]>,
    rate_limit: Option<&'a [u8]>,
}

impl Payload<'_> {
    const NONE: Payload<'static> = Payload { tablet: None, page_info: None, rate_limit: None };

    fn entries(self) -> u16 {
        let entry = |value: Option<&[u8]>| u16::from(value.is_some());
        entry(self.tablet) + entry(self.page_info) + entry(self.rate_limit)
    }
}

/// The write side of a connection.
#[derive(Debug, Default)]
pub struct Outbox {
    out: WriteQueue,
    /// Set once frames are sent in segments.
    sealing: Option<Sealing>,
    /// The address that identifies this node in errors.
    node: Option<IpAddr>,
}

impl Outbox {
    /// An outbox whose errors identify this node by its address.
    pub fn of_node(address: IpAddr) -> Outbox {
        Outbox { node: Some(address), ..Outbox::default() }
    }

    /// The bytes that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// The bytes in memory for answers that wait.
    #[inline]
    pub fn held(&self) -> usize {
        self.out.held()
    }

    /// Whether rows are copied, because they are compressed.
    pub fn copies(&self, reply: &Reply) -> bool {
        reply.compression.is_some() || self.sealing.as_ref().is_some_and(Sealing::compresses)
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Appends READY.
    pub fn ready(&mut self, reply: &Reply) {
        let start = self.begin(reply, Opcode::Ready, &[], Payload::NONE);
        self.finish(reply, start, None);
    }

    /// Appends SUPPORTED.
    pub fn supported(&mut self, reply: &Reply, options: &[(&str, Vec<String>)]) {
        let start = self.begin(reply, Opcode::Supported, &[], Payload::NONE);
        write::string_multimap(&mut self.out.tail, options);
        self.finish(reply, start, None);
    }

    /// Appends the answer of a statement.
    #[inline]
    pub fn answer(&mut self, reply: &Reply, answer: &StatementResult) {
        let (tablet, page_info) = (answer.tablet.as_deref(), answer.page_info.as_deref());
        let payload = Payload { tablet, page_info, ..Payload::NONE };
        let start = self.begin(reply, Opcode::Result, &answer.warnings, payload);
        let rows = result::answer(&mut self.out.tail, reply, &answer.kind);
        self.finish(reply, start, rows);
    }

    /// Appends the answer of PREPARE.
    pub fn prepared(&mut self, reply: &Reply, prepared: &Prepared) {
        let start = self.begin(reply, Opcode::Result, &prepared.warnings, Payload::NONE);
        result::prepared(&mut self.out.tail, reply, prepared);
        self.finish(reply, start, None);
    }

    /// Appends ERROR.
    pub fn error(&mut self, reply: &Reply, why: &Error) {
        let info = match why {
            Error::RateLimit(refusal) if reply.rate_limit_info => Some(write::Text::of(refusal.json())),
            _ => None,
        };
        let payload = Payload { rate_limit: info.as_ref().map(write::Text::as_bytes), ..Payload::NONE };
        let start = self.begin(reply, Opcode::Error, &[], payload);
        error::write(&mut self.out.tail, reply, self.node, why);
        self.finish(reply, start, None);
    }

    /// Appends ERROR in an unsupported version, so that the client can decode it. Versions 1 and 2
    /// have a shorter header.
    pub fn foreign_error(&mut self, version: u8, stream: i16, why: &Error) {
        if let Some(version) = Version::from_number(version) {
            return self.error(&Reply::plain(version, stream), why);
        }
        self.out.tail.put_u8(0x80 | version);
        self.out.tail.put_u8(0);
        self.out.tail.put_i8(stream as i8);
        self.out.tail.put_u8(Opcode::Error as u8);
        let at = self.out.tail.len();
        self.out.tail.put_u32(0);
        error::write(&mut self.out.tail, &Reply::plain(Version::V3, stream), None, why);
        let len = (self.out.tail.len() - at - 4) as u32;
        self.out.tail[at..at + 4].copy_from_slice(&len.to_be_bytes());
    }

    /// Appends EVENT.
    pub fn event(&mut self, version: Version, compression: Option<Compression>, event: &Event) {
        let reply = Reply { compression, ..Reply::plain(version, -1) };
        let start = self.begin(&reply, Opcode::Event, &[], Payload::NONE);
        event.write(&mut self.out.tail);
        self.finish(&reply, start, None);
    }

    /// Starts a frame in the tail: header, trace id, warnings and payload, in this order. Returns
    /// the offset of the body.
    #[inline]
    fn begin(&mut self, reply: &Reply, opcode: Opcode, warnings: &[String], payload: Payload<'_>) -> usize {
        if self.sealing.is_some() {
            self.open_segment();
        }
        let extras = reply.version >= Version::V4;
        let warn = extras && !warnings.is_empty();
        let entries = if extras { payload.entries() } else { 0 };
        let mut flags = 0;
        if reply.trace.is_some() {
            flags |= flag::TRACING;
        }
        if warn {
            flags |= flag::WARNING;
        }
        if entries > 0 {
            flags |= flag::CUSTOM_PAYLOAD;
        }
        let [s0, s1] = reply.stream.to_be_bytes();
        self.out.tail.put_slice(&[0x80 | reply.version as u8, flags, s0, s1, opcode as u8, 0, 0, 0, 0]);
        let start = self.out.tail.len();
        if let Some(trace) = &reply.trace {
            self.out.tail.put_slice(trace.as_bytes());
        }
        if warn {
            write::string_list(&mut self.out.tail, warnings);
        }
        if entries > 0 {
            self.out.tail.put_u16(entries);
            let Payload { tablet, page_info, rate_limit } = payload;
            for (key, value) in [("tablets-routing-v1", tablet), (PAGE_INFO, page_info), (RATE_LIMIT_INFO, rate_limit)]
            {
                if let Some(value) = value {
                    write::string(&mut self.out.tail, key);
                    write::bytes(&mut self.out.tail, value);
                }
            }
        }
        start
    }

    /// Ends the frame whose body starts at `start`, with `rows` as the rest of the body.
    #[inline]
    fn finish(&mut self, reply: &Reply, start: usize, rows: Option<&Bytes>) {
        if self.sealing.is_some() {
            return self.finish_in_segment(start, rows);
        }
        let rows_len = rows.map_or(0, Bytes::len);
        let len = self.out.tail.len() - start + rows_len;
        let compression = reply.compression.filter(|_| len >= compression::MIN_COMPRESSED);
        let mut large = None;
        match (compression, rows) {
            (Some(compression), rows) => {
                let mut closed = Vec::new();
                match rows {
                    // Not assembled in the tail, whose capacity would stay that large.
                    Some(rows) if rows.len() >= LARGE => {
                        let whole = [&self.out.tail[start..], &rows[..]].concat();
                        compression.compress(&whole, &mut closed);
                        drop(whole);
                        closed.shrink_to_fit();
                    }
                    rows => {
                        self.out.tail.extend_from_slice(rows.map_or(&[][..], |rows| rows));
                        compression.compress(&self.out.tail[start..], &mut closed);
                    }
                }
                self.out.tail.truncate(start);
                self.out.tail[start - 8] |= flag::COMPRESSION;
                self.set_len(start, closed.len());
                if closed.len() >= LARGE {
                    large = Some(Bytes::from(closed));
                } else {
                    self.out.tail.extend_from_slice(&closed);
                }
            }
            (None, rows) => {
                self.set_len(start, len);
                match rows {
                    Some(rows) if rows.len() >= LARGE => large = Some(rows.clone()),
                    Some(rows) => self.out.tail.extend_from_slice(rows),
                    None => {}
                }
            }
        }
        if let Some(large) = large {
            self.out.push(large);
        }
    }

    fn set_len(&mut self, start: usize, len: usize) {
        debug_assert!(i32::try_from(len).is_ok(), "a frame of {len} bytes has no length");
        self.out.tail[start - 4..start].copy_from_slice(&(len as u32).to_be_bytes());
    }

    /// Writes what waits, as [`WriteQueue::flush`] describes. True if nothing is left.
    #[inline]
    pub fn flush<T: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut T,
        unflushed: &mut bool,
        cx: &mut Context<'_>,
        written: impl FnMut(usize),
    ) -> io::Result<bool> {
        self.seal();
        self.out.flush(stream, unflushed, cx, written)
    }

    /// Discards everything.
    pub fn clear(&mut self) {
        *self = Outbox::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cql::api::{ResultKind, ResultMetadata, Rows};
    use cql::rate_limit_error::RateLimitError;
    use model::TableId;
    use proptest::prelude::*;
    use replica::{Excess, LimitKind, LimitedBy, RateLimited};
    use std::io::IoSlice;
    use std::rc::Rc;

    /// Takes all that waits, at most `step` bytes a write.
    pub(super) fn drain(outbox: &mut Outbox, step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        outbox.seal();
        while !outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); WriteQueue::MAX_SLICES];
            let used = outbox.out.slices(&mut slices);
            let before = out.len();
            for slice in &slices[..used] {
                let room = step - (out.len() - before);
                out.extend_from_slice(&slice[..slice.len().min(room)]);
            }
            let n = out.len() - before;
            assert!(n > 0);
            outbox.out.written(n);
        }
        assert_eq!((outbox.len(), outbox.held()), (0, 0));
        out
    }

    fn rows(body: Vec<u8>) -> StatementResult {
        StatementResult::new(ResultKind::Rows(Rows {
            metadata: Rc::new(ResultMetadata::default()),
            paging_state: None,
            count: 1,
            body: Bytes::from(body),
        }))
    }

    proptest! {
        #[test]
        fn every_frame_arrives_whole(sizes in prop::collection::vec(0usize..20_000, 1..8), step in 50usize..50_000) {
            for compression in [None, Some(Compression::Lz4), Some(Compression::Snappy)] {
                let mut outbox = Outbox::default();
                for (stream, size) in sizes.iter().enumerate() {
                    let reply = Reply { compression, ..Reply::plain(Version::V4, stream as i16) };
                    outbox.answer(&reply, &rows(vec![stream as u8; *size]));
                }
                let len = outbox.len();
                let bytes = drain(&mut outbox, step);
                prop_assert_eq!(len, bytes.len());
                let mut rest = &bytes[..];
                for (stream, size) in sizes.iter().enumerate() {
                    prop_assert_eq!(rest[0], 0x84);
                    prop_assert_eq!(i16::from_be_bytes([rest[2], rest[3]]), stream as i16);
                    let len = u32::from_be_bytes([rest[5], rest[6], rest[7], rest[8]]) as usize;
                    let mut body = Bytes::copy_from_slice(&rest[9..9 + len]);
                    if rest[1] & flag::COMPRESSION != 0 {
                        body = compression.expect("negotiated").decompress(&body, 1 << 20).expect("opens");
                    }
                    prop_assert_eq!(body.len(), 16 + size);
                    prop_assert!(body[16..].iter().all(|byte| *byte == stream as u8));
                    rest = &rest[9 + len..];
                }
                prop_assert!(rest.is_empty());
            }
        }
    }

    #[test]
    fn trace_then_warnings_then_payload() {
        let mut outbox = Outbox::default();
        let trace = Uuid::from_u128(0x11);
        let reply = Reply { trace: Some(trace), ..Reply::plain(Version::V4, 2) };
        let mut answer = StatementResult::new(ResultKind::Void);
        answer.warnings = vec!["w".to_owned()];
        answer.tablet = Some(Bytes::from_static(b"T"));
        outbox.answer(&reply, &answer);
        let expected = [
            &[0x84, 0x02 | 0x04 | 0x08, 0, 2, 8, 0, 0, 0, 52][..],
            trace.as_bytes(),
            b"\0\x01\0\x01w",
            b"\0\x01\0\x12tablets-routing-v1\0\0\0\x01T",
            &[0, 0, 0, 1],
        ]
        .concat();
        let mut expected = expected;
        expected[8] = (expected.len() - 9) as u8;
        assert_eq!(drain(&mut outbox, 7), expected);
        // Version 3 has neither warnings nor payloads.
        outbox.answer(&Reply::plain(Version::V3, 2), &answer);
        assert_eq!(drain(&mut outbox, 100), [0x83, 0, 0, 2, 8, 0, 0, 0, 4, 0, 0, 0, 1]);
    }

    #[test]
    fn a_refusal_has_its_numbers_as_payload_if_the_client_asks() {
        let refused = RateLimited {
            kind: LimitKind::Read,
            table: TableId::from_bytes([1; 16]),
            by: LimitedBy::Table,
            partition: 1,
            excess: Excess::default(),
        };
        let refusal = RateLimitError { target: "ks.t".into(), refused, rejected_by_coordinator: true };
        let json = refusal.json().to_string();
        let error = Error::RateLimit(refusal);
        let frame = |version, rate_limit_info| {
            let mut outbox = Outbox::default();
            outbox.error(&Reply { rate_limit_info, ..Reply::plain(version, 2) }, &error);
            drain(&mut outbox, 1_000)
        };
        let payload = [b"\0\x01\0\x12messina-rate-limit\0\0\0", &[json.len() as u8][..], json.as_bytes()].concat();
        let (plain, asked) = (frame(Version::V4, false), frame(Version::V4, true));
        assert_eq!((plain[1], asked[1]), (0, 4));
        assert_eq!(asked[9..], [&payload[..], &plain[9..]].concat());
        assert_eq!(frame(Version::V3, true)[1], 0, "version 3 has no payloads");
    }

    #[test]
    fn old_versions_get_their_own_header() {
        let mut outbox = Outbox::default();
        outbox.foreign_error(2, 5, &Error::Protocol("no".into()));
        assert_eq!(drain(&mut outbox, 100), [0x82, 0, 5, 0, 0, 0, 0, 8, 0, 0, 0, 10, 0, 2, b'n', b'o']);
    }
}
