//! Decoding the bodies of requests into what the language takes.

use super::body::{Body, Text};
use super::event::{EventKind, EventKinds};
use super::frames::RawFrame;
use super::{Compression, Opcode, Version, flag};
use bytes::Bytes;
use cql::Error;
use cql::api::{Batch, BatchKind, BatchStatement, BoundValues, Consistency, QueryParams};
use smallvec::SmallVec;

/// Bits of the flags byte of a query's parameters.
mod param {
    pub const VALUES: u8 = 0x01;
    pub const SKIP_METADATA: u8 = 0x02;
    pub const PAGE_SIZE: u8 = 0x04;
    pub const PAGING_STATE: u8 = 0x08;
    pub const SERIAL_CONSISTENCY: u8 = 0x10;
    pub const TIMESTAMP: u8 = 0x20;
    pub const NAMES: u8 = 0x40;
}

/// A decoded request.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Request {
    /// Opens the conversation.
    Startup {
        /// All pairs as sent.
        options: Vec<(String, String)>,
    },
    /// Asks what the server supports; also the drivers' heartbeat.
    Options,
    /// A statement as text.
    Query {
        /// The text.
        text: Text,
        /// How to execute it.
        params: QueryParams,
    },
    /// Prepares a statement.
    Prepare {
        /// The text.
        text: Text,
    },
    /// Executes a prepared statement.
    Execute {
        /// Its id.
        id: [u8; 16],
        /// How to execute it.
        params: QueryParams,
    },
    /// Executes several statements.
    Batch(Batch),
    /// Asks for events.
    Register(EventKinds),
    /// Answers a challenge.
    AuthResponse(Option<Bytes>),
}

impl Request {
    /// Decodes `frame`. `compression` is what the connection negotiated; an opened body has at most `max_body` bytes.
    pub fn decode(frame: RawFrame, compression: Option<Compression>, max_body: usize) -> Result<Request, Error> {
        let mut bytes = frame.body;
        if frame.flags & flag::COMPRESSION != 0 {
            let Some(compression) = compression else {
                return Err(Error::Protocol("A compressed frame, but no compression was negotiated".to_owned()));
            };
            bytes = compression.decompress(&bytes, max_body)?;
        }
        let version = frame.version;
        let mut body = Body::new(bytes);
        if frame.flags & flag::CUSTOM_PAYLOAD != 0 && version >= Version::V4 {
            body.skip_bytes_map()?;
        }
        Ok(match frame.opcode {
            Opcode::Execute => {
                let id = body.statement_id()?;
                Request::Execute { id, params: params(&mut body, version)? }
            }
            Opcode::Query => {
                let text = body.long_string()?;
                Request::Query { text, params: params(&mut body, version)? }
            }
            Opcode::Batch => Request::Batch(batch(&mut body, version)?),
            Opcode::Prepare => Request::Prepare { text: body.long_string()? },
            Opcode::Startup => Request::Startup { options: body.string_map()? },
            Opcode::Options => Request::Options,
            Opcode::Register => Request::Register(register(&mut body)?),
            Opcode::AuthResponse => Request::AuthResponse(body.bytes()?),
            other => return Err(Error::Protocol(format!("{} is not a request", other.name()))),
        })
    }
}

fn consistency(body: &mut Body) -> Result<Consistency, Error> {
    let code = body.short()?;
    Consistency::from_code(code).ok_or_else(|| Error::Protocol(format!("Unknown code {code} for a consistency level")))
}

fn positional(body: &mut Body, version: Version) -> Result<BoundValues, Error> {
    let count = body.count(4)?;
    let mut values = SmallVec::with_capacity(count);
    for _ in 0..count {
        values.push(body.value(version)?);
    }
    Ok(BoundValues::Positional(values))
}

fn named(body: &mut Body, version: Version) -> Result<BoundValues, Error> {
    let count = body.count(6)?;
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        let name = body.string()?.to_owned();
        values.push((name, body.value(version)?));
    }
    Ok(BoundValues::Named(values))
}

fn timestamp(body: &mut Body) -> Result<i64, Error> {
    match body.long()? {
        i64::MIN => Err(Error::Protocol(format!(
            "Out of bound timestamp, must be in [{}, {}] (got {})",
            i64::MIN + 1,
            i64::MAX,
            i64::MIN
        ))),
        micros => Ok(micros),
    }
}

fn params(body: &mut Body, version: Version) -> Result<QueryParams, Error> {
    let consistency = consistency(body)?;
    let flags = body.byte()?;
    if flags & 0x80 != 0 {
        return Err(Error::Protocol(format!("Unknown query flags 0x{flags:02x} in protocol version {version}")));
    }
    let mut params =
        QueryParams { consistency, skip_metadata: flags & param::SKIP_METADATA != 0, ..Default::default() };
    if flags & param::VALUES != 0 {
        params.values = if flags & param::NAMES != 0 { named(body, version)? } else { positional(body, version)? };
    }
    if flags & param::PAGE_SIZE != 0 {
        params.page_size = Some(body.int()?);
    }
    if flags & param::PAGING_STATE != 0 {
        params.paging_state = body.bytes()?;
    }
    serial_and_timestamp(body, flags, &mut params)?;
    Ok(params)
}

fn serial_and_timestamp(body: &mut Body, flags: u8, params: &mut QueryParams) -> Result<(), Error> {
    if flags & param::SERIAL_CONSISTENCY != 0 {
        params.serial_consistency = Some(consistency(body)?);
    }
    if flags & param::TIMESTAMP != 0 {
        params.timestamp = Some(timestamp(body)?);
    }
    Ok(())
}

fn batch(body: &mut Body, version: Version) -> Result<Batch, Error> {
    let kind = match body.byte()? {
        0 => BatchKind::Logged,
        1 => BatchKind::Unlogged,
        2 => BatchKind::Counter,
        other => return Err(Error::Protocol(format!("Invalid batch type {other}"))),
    };
    let count = body.count(7)?;
    let mut statements = Vec::with_capacity(count);
    for _ in 0..count {
        statements.push(match body.byte()? {
            0 => {
                let text = body.long_string()?;
                BatchStatement::Query(text.as_str().to_owned(), positional(body, version)?)
            }
            1 => {
                let id = body.statement_id()?;
                BatchStatement::Prepared(id, positional(body, version)?)
            }
            other => return Err(Error::Protocol(format!("Invalid kind {other} of a statement in a batch"))),
        });
    }
    let mut params = QueryParams { consistency: consistency(body)?, ..Default::default() };
    let flags = body.byte()?;
    if flags & param::NAMES != 0 {
        return Err(Error::Protocol("Named values are not supported in batches".to_owned()));
    }
    if flags & !(param::SERIAL_CONSISTENCY | param::TIMESTAMP) != 0 {
        return Err(Error::Protocol(format!("Unknown batch flags 0x{flags:02x} in protocol version {version}")));
    }
    serial_and_timestamp(body, flags, &mut params)?;
    Ok(Batch { kind, statements, params })
}

fn register(body: &mut Body) -> Result<EventKinds, Error> {
    let mut kinds = EventKinds::default();
    for name in body.string_list()? {
        let kind = EventKind::from_name(&name)
            .ok_or_else(|| Error::Protocol(format!("Invalid value '{name}' for an event type")))?;
        kinds.add(kind);
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;
    use cql::api::BoundValue;
    use proptest::prelude::*;

    fn decode(opcode: Opcode, body: Vec<u8>) -> Result<Request, Error> {
        let frame = RawFrame { version: Version::V4, flags: 0, stream: 0, opcode, body: Bytes::from(body) };
        Request::decode(frame, None, 1 << 20)
    }

    fn write_value(out: &mut Vec<u8>, value: &BoundValue) {
        match value {
            BoundValue::Null => out.put_i32(-1),
            BoundValue::Unset => out.put_i32(-2),
            BoundValue::Value(bytes) => {
                out.put_i32(bytes.len() as i32);
                out.put_slice(bytes);
            }
        }
    }

    fn write_params(out: &mut Vec<u8>, params: &QueryParams) {
        out.put_u16(params.consistency as u16);
        let at = out.len();
        out.put_u8(0);
        let mut flags = 0;
        match &params.values {
            BoundValues::Positional(values) if values.is_empty() => {}
            BoundValues::Positional(values) => {
                flags |= param::VALUES;
                out.put_u16(values.len() as u16);
                values.iter().for_each(|value| write_value(out, value));
            }
            BoundValues::Named(values) => {
                flags |= param::VALUES | param::NAMES;
                out.put_u16(values.len() as u16);
                for (name, value) in values {
                    super::super::write::string(out, name);
                    write_value(out, value);
                }
            }
        }
        if params.skip_metadata {
            flags |= param::SKIP_METADATA;
        }
        if let Some(size) = params.page_size {
            flags |= param::PAGE_SIZE;
            out.put_i32(size);
        }
        if let Some(state) = &params.paging_state {
            flags |= param::PAGING_STATE;
            out.put_i32(state.len() as i32);
            out.put_slice(state);
        }
        if let Some(serial) = params.serial_consistency {
            flags |= param::SERIAL_CONSISTENCY;
            out.put_u16(serial as u16);
        }
        if let Some(micros) = params.timestamp {
            flags |= param::TIMESTAMP;
            out.put_i64(micros);
        }
        out[at] = flags;
    }

    fn any_value() -> impl Strategy<Value = BoundValue> {
        prop_oneof![
            Just(BoundValue::Null),
            Just(BoundValue::Unset),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(|v| BoundValue::Value(Bytes::from(v))),
        ]
    }

    fn any_level() -> impl Strategy<Value = Consistency> {
        (0u16..11).prop_map(|code| Consistency::from_code(code).unwrap_or(Consistency::One))
    }

    fn any_params() -> impl Strategy<Value = QueryParams> {
        let values = prop_oneof![
            prop::collection::vec(any_value(), 0..12).prop_map(|v| BoundValues::Positional(v.into())),
            prop::collection::vec(("[a-z]{1,8}", any_value()), 1..5).prop_map(BoundValues::Named),
        ];
        (
            any_level(),
            prop::option::of(any_level()),
            values,
            prop::option::of(any::<i32>()),
            prop::option::of(prop::collection::vec(any::<u8>(), 0..50).prop_map(Bytes::from)),
            any::<bool>(),
            prop::option::of((i64::MIN + 1)..),
        )
            .prop_map(|(consistency, serial, values, page_size, paging_state, skip_metadata, timestamp)| {
                QueryParams {
                    consistency,
                    serial_consistency: serial,
                    values,
                    page_size,
                    paging_state,
                    skip_metadata,
                    timestamp,
                    trace: None,
                }
            })
    }

    proptest! {
        #[test]
        fn query_and_execute_round_trip(text in ".{0,40}", id in any::<[u8; 16]>(), params in any_params()) {
            let mut body = Vec::new();
            body.put_i32(text.len() as i32);
            body.put_slice(text.as_bytes());
            write_params(&mut body, &params);
            match decode(Opcode::Query, body) {
                Ok(Request::Query { text: got, params: read }) => {
                    prop_assert_eq!(got.as_str(), text);
                    prop_assert_eq!(format!("{read:?}"), format!("{params:?}"));
                }
                other => panic!("{other:?}"),
            }
            let mut body = vec![0, 16];
            body.put_slice(&id);
            write_params(&mut body, &params);
            match decode(Opcode::Execute, body) {
                Ok(Request::Execute { id: got, params: read }) => {
                    prop_assert_eq!(got, id);
                    prop_assert_eq!(format!("{read:?}"), format!("{params:?}"));
                }
                other => panic!("{other:?}"),
            }
        }

        #[test]
        fn every_cut_of_a_request_is_an_error(params in any_params(), at in any::<prop::sample::Index>()) {
            let mut body = vec![0, 16];
            body.put_slice(&[7; 16]);
            write_params(&mut body, &params);
            body.truncate(at.index(body.len()));
            prop_assert!(matches!(decode(Opcode::Execute, body), Err(Error::Protocol(_))));
        }
    }

    #[test]
    fn batches() {
        let mut body = vec![1, 0, 2, 0];
        body.put_i32(1);
        body.put_slice(b"q");
        body.put_slice(&[0, 1, 0, 0, 0, 1, 9]);
        body.put_slice(&[1, 0, 16]);
        body.put_slice(&[3; 16]);
        body.put_slice(&[0, 0]);
        body.put_slice(&[0, 1, 0x20]);
        body.put_i64(77);
        match decode(Opcode::Batch, body) {
            Ok(Request::Batch(batch)) => {
                assert_eq!(batch.kind, BatchKind::Unlogged);
                assert_eq!(batch.statements.len(), 2);
                assert_eq!(batch.params.timestamp, Some(77));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let query = |tail: &[u8]| {
            let mut body = vec![0, 0, 0, 1, b'q'];
            body.extend(tail);
            body
        };
        let cases: &[(Opcode, Vec<u8>, &str)] = &[
            (Opcode::Query, query(&[0, 99, 0]), "Unknown code 99"),
            (Opcode::Query, query(&[0, 1, 0x80]), "Unknown query flags"),
            (Opcode::Query, query(&[0, 1, 1, 0xFF, 0xFF]), "do not fit"),
            (Opcode::Query, query(&[0, 1, 0x20, 0x80, 0, 0, 0, 0, 0, 0, 0]), "Out of bound timestamp"),
            (Opcode::Query, vec![0xFF, 0, 0, 0], "a string of length"),
            (Opcode::Query, vec![0, 0, 0, 2, 0xC3, 0x28, 0, 1, 0], "not valid UTF-8"),
            (Opcode::Execute, vec![0, 2, 1, 1, 0, 1, 0], "statement id of 2 bytes"),
            (Opcode::Batch, vec![9, 0, 0, 0, 1, 0], "Invalid batch type 9"),
            (Opcode::Batch, vec![0, 0, 1, 5, 0, 0, 0, 0, 0, 0], "Invalid kind 5"),
            (Opcode::Batch, vec![0, 0, 0, 0, 1, 0x40], "Named values"),
            (Opcode::Register, vec![0, 1, 0, 1, b'X'], "Invalid value 'X'"),
            (Opcode::Startup, vec![0, 1, 0, 9], "do not fit"),
        ];
        for (opcode, body, why) in cases {
            match decode(*opcode, body.clone()) {
                Err(Error::Protocol(message)) => assert!(message.contains(why), "{message} / {why}"),
                other => panic!("{why}: {other:?}"),
            }
        }
    }
}
