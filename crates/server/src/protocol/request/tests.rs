//! Bodies of requests in every version: their content and their errors.

use super::*;
use bytes::BufMut;
use cql::api::BoundValue;
use proptest::prelude::*;

fn decode_in(version: Version, dialect: Dialect, opcode: Opcode, body: Vec<u8>) -> Result<Request, Error> {
    let frame = RawFrame { version, flags: 0, stream: 0, opcode, body: Bytes::from(body) };
    Request::decode(frame, dialect, 1 << 20)
}

fn decode(opcode: Opcode, body: Vec<u8>) -> Result<Request, Error> {
    decode_in(Version::V4, Dialect::default(), opcode, body)
}

fn decode_v5(opcode: Opcode, body: Vec<u8>) -> Result<Request, Error> {
    decode_in(Version::V5, Dialect::default(), opcode, body)
}

fn write_value(out: &mut Vec<u8>, value: &BoundValue) {
    match value {
        BoundValue::Null => out.put_i32(-1),
        BoundValue::Unset => out.put_i32(-2),
        BoundValue::Value(bytes) => {
            out.put_i32(bytes.len() as i32);
            out.put_slice(bytes);
        }
        BoundValue::Checked(_) => unreachable!("no value is checked before it is decoded"),
    }
}

/// Appends parameters. Those of version 5 only in version 5.
fn write_params(out: &mut Vec<u8>, version: Version, params: &QueryParams, keyspace: Option<&str>) {
    out.put_u16(params.consistency as u16);
    let mut flags = 0;
    let mut rest = Vec::new();
    match &params.values {
        BoundValues::Positional(values) if values.is_empty() => {}
        BoundValues::Positional(values) => {
            flags |= param::VALUES;
            rest.put_u16(values.len() as u16);
            values.iter().for_each(|value| write_value(&mut rest, value));
        }
        BoundValues::Named(values) => {
            flags |= param::VALUES | param::NAMES;
            rest.put_u16(values.len() as u16);
            for (name, value) in values {
                super::super::write::string(&mut rest, name);
                write_value(&mut rest, value);
            }
        }
    }
    if params.skip_metadata {
        flags |= param::SKIP_METADATA;
    }
    if let Some(size) = params.page_size {
        flags |= param::PAGE_SIZE;
        rest.put_i32(size);
    }
    if let Some(state) = &params.paging_state {
        flags |= param::PAGING_STATE;
        rest.put_i32(state.len() as i32);
        rest.put_slice(state);
    }
    if let Some(serial) = params.serial_consistency {
        flags |= param::SERIAL_CONSISTENCY;
        rest.put_u16(serial as u16);
    }
    if let Some(micros) = params.timestamp {
        flags |= param::TIMESTAMP;
        rest.put_i64(micros);
    }
    if let Some(keyspace) = keyspace {
        flags |= param::KEYSPACE;
        super::super::write::string(&mut rest, keyspace);
    }
    if let Some(now) = params.now_in_seconds {
        flags |= param::NOW;
        rest.put_i32(now);
    }
    match version {
        Version::V5 => out.put_u32(flags),
        _ => out.put_u8(flags as u8),
    }
    out.put_slice(&rest);
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
        .prop_map(
            |(consistency, serial_consistency, values, page_size, paging_state, skip_metadata, timestamp)| {
                QueryParams {
                    consistency,
                    serial_consistency,
                    values,
                    page_size,
                    paging_state,
                    skip_metadata,
                    timestamp,
                    ..QueryParams::default()
                }
            },
        )
}

/// A version with its features beyond `any_params`: time and keyspace.
fn any_version() -> impl Strategy<Value = (Version, Option<i32>, Option<String>)> {
    prop_oneof![
        Just((Version::V4, None, None)),
        (prop::option::of(any::<i32>()), prop::option::of("[a-z]{0,8}")).prop_map(|(now, keyspace)| (
            Version::V5,
            now,
            keyspace
        )),
    ]
}

proptest! {
    #[test]
    fn query_and_execute_round_trip(
        text in ".{0,40}",
        id in any::<[u8; 16]>(),
        known in any::<[u8; 16]>(),
        metadata_ids in any::<bool>(),
        mut params in any_params(),
        (version, now, keyspace) in any_version(),
    ) {
        params.now_in_seconds = now;
        let dialect = Dialect { metadata_ids, ..Dialect::default() };
        let mut body = Vec::new();
        body.put_i32(text.len() as i32);
        body.put_slice(text.as_bytes());
        write_params(&mut body, version, &params, keyspace.as_deref());
        match decode_in(version, dialect, Opcode::Query, body) {
            Ok(Request::Query { text: got, params: read, keyspace: inside }) => {
                prop_assert_eq!(got.as_str(), text);
                prop_assert_eq!(format!("{read:?}"), format!("{params:?}"));
                prop_assert_eq!(inside.as_deref(), keyspace.as_deref());
            }
            other => panic!("{other:?}"),
        }
        let mut body = vec![0, 16];
        body.put_slice(&id);
        let with_id = metadata_ids || version == Version::V5;
        if with_id {
            body.put_slice(&[0, 16]);
            body.put_slice(&known);
        }
        write_params(&mut body, version, &params, keyspace.as_deref());
        match decode_in(version, dialect, Opcode::Execute, body) {
            Ok(Request::Execute { id: got, metadata_id, params: read }) => {
                prop_assert_eq!(got, id);
                prop_assert_eq!(metadata_id, with_id.then_some(known));
                prop_assert_eq!(format!("{read:?}"), format!("{params:?}"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_cut_of_a_request_is_an_error(
        mut params in any_params(),
        (version, now, keyspace) in any_version(),
        at in any::<prop::sample::Index>(),
    ) {
        params.now_in_seconds = now;
        let mut body = vec![0, 16];
        body.put_slice(&[7; 16]);
        if version == Version::V5 {
            body.put_slice(&[0, 3, 1, 2, 3]);
        }
        write_params(&mut body, version, &params, keyspace.as_deref());
        body.truncate(at.index(body.len()));
        let decoded = decode_in(version, Dialect::default(), Opcode::Execute, body);
        prop_assert!(matches!(decoded, Err(Error::Protocol(_))));
    }
}

#[test]
fn a_payload_may_ask_why_the_page_ended_and_for_the_numbers_of_a_refusal() {
    for (key, asked) in
        [("messina-page-info", (true, false)), ("messina-rate-limit", (false, true)), ("another", (false, false))]
    {
        let mut body = vec![0, 2, 0, 1, b'x', 0xFF, 0xFF, 0xFF, 0xFF];
        super::super::write::string(&mut body, key);
        body.put_slice(&[0, 0, 0, 1, 9]);
        body.put_slice(&[0, 0, 0, 1, b'q', 0, 1, 0]);
        let mut frame =
            RawFrame { version: Version::V4, flags: 4, stream: 0, opcode: Opcode::Query, body: body.into() };
        match Request::decode(frame.clone(), Dialect::default(), 1 << 20) {
            Ok(Request::Query { params, .. }) => assert_eq!((params.page_info, params.rate_limit_info), asked),
            other => panic!("{other:?}"),
        }
        frame.body.truncate(8);
        assert!(Request::decode(frame, Dialect::default(), 1 << 20).is_err());
    }
}

/// A batch with one text and one prepared statement, up to its consistency level.
fn batch_body() -> Vec<u8> {
    let mut body = vec![1, 0, 2, 0];
    body.put_i32(1);
    body.put_slice(b"q");
    body.put_slice(&[0, 1, 0, 0, 0, 1, 9]);
    body.put_slice(&[1, 0, 16]);
    body.put_slice(&[3; 16]);
    body.put_slice(&[0, 0, 0, 1]);
    body
}

#[test]
fn batches() {
    let mut v4 = batch_body();
    v4.put_u8(0x20);
    v4.put_i64(77);
    let mut v5 = batch_body();
    v5.put_u32(0x20 | 0x80 | 0x100);
    v5.put_i64(77);
    v5.put_slice(b"\0\x02ks");
    v5.put_i32(-5);
    for (decoded, wanted, now) in
        [(decode(Opcode::Batch, v4), None, None), (decode_v5(Opcode::Batch, v5), Some("ks"), Some(-5))]
    {
        match decoded {
            Ok(Request::Batch { batch, keyspace }) => {
                assert_eq!(batch.kind, BatchKind::Unlogged);
                assert_eq!(batch.statements.len(), 2);
                assert_eq!((batch.params.timestamp, batch.params.now_in_seconds), (Some(77), now));
                assert_eq!(keyspace.as_deref(), wanted);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn prepare_may_name_a_keyspace() {
    let cases: [(Version, &[u8], Option<&str>); 3] =
        [(Version::V4, b"", None), (Version::V5, b"\0\0\0\0", None), (Version::V5, b"\0\0\0\x01\0\x02Ks", Some("Ks"))];
    for (version, tail, wanted) in cases {
        let body = [b"\0\0\0\x01q", tail].concat();
        match decode_in(version, Dialect::default(), Opcode::Prepare, body) {
            Ok(Request::Prepare { text, keyspace }) => assert_eq!((text.as_str(), keyspace.as_deref()), ("q", wanted)),
            other => panic!("{other:?}"),
        }
    }
}

/// Drivers send an empty id if they know none.
#[test]
fn metadata_ids_of_any_length_are_taken() {
    let execute = |id: &[u8]| {
        let mut body = vec![0, 16];
        body.put_slice(&[7; 16]);
        body.put_u16(id.len() as u16);
        body.put_slice(id);
        body.put_slice(&[0, 1, 0, 0, 0, 0]);
        match decode_v5(Opcode::Execute, body) {
            Ok(Request::Execute { metadata_id, .. }) => metadata_id,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(execute(&[8; 16]), Some([8; 16]));
    assert_eq!(execute(&[]), Some([0; 16]));
    assert_eq!(execute(&[8; 20]), Some([0; 16]));
}

#[test]
fn errors_name_the_fault_in_a_request() {
    let query = |tail: &[u8]| {
        let mut body = vec![0, 0, 0, 1, b'q'];
        body.extend(tail);
        body
    };
    let cases: &[(Opcode, Vec<u8>, &str)] = &[
        (Opcode::Query, query(&[0, 99, 0]), "Unknown code 99"),
        (Opcode::Query, query(&[0, 1, 0x80]), "Unknown query flags 0x80"),
        (Opcode::Query, query(&[0, 1, 1, 0xFF, 0xFF]), "do not fit"),
        (Opcode::Query, query(&[0, 1, 0x20, 0x80, 0, 0, 0, 0, 0, 0, 0]), "Out of bound timestamp"),
        (Opcode::Query, vec![0xFF, 0, 0, 0], "a string of length"),
        (Opcode::Query, vec![0, 0, 0, 2, 0xC3, 0x28, 0, 1, 0], "not valid UTF-8"),
        (Opcode::Execute, vec![0, 2, 1, 1, 0, 1, 0], "statement id of 2 bytes"),
        (Opcode::Batch, vec![9, 0, 0, 0, 1, 0], "Invalid batch type 9"),
        (Opcode::Batch, vec![0, 0, 1, 5, 0, 0, 0, 0, 0, 0], "Invalid kind 5"),
        (Opcode::Batch, vec![0, 0, 0, 0, 1, 0x40], "Named values"),
        (Opcode::Batch, vec![0, 0, 0, 0, 1, 0x80], "Unknown batch flags 0x80"),
        (Opcode::Register, vec![0, 1, 0, 1, b'X'], "Invalid value 'X'"),
        (Opcode::Startup, vec![0, 1, 0, 9], "do not fit"),
    ];
    let v5: &[(Opcode, Vec<u8>, &str)] = &[
        (Opcode::Query, query(&[0, 1, 0, 0, 2, 0]), "Unknown query flags 0x200"),
        (Opcode::Query, query(&[0, 1, 0]), "Malformed frame"),
        (Opcode::Query, query(&[0, 1, 0, 0, 0, 0x80, 0, 9, b'k']), "Malformed frame"),
        (Opcode::Prepare, query(&[]), "Malformed frame"),
        (Opcode::Prepare, query(&[0, 0, 0, 2]), "Unknown prepare flags 0x02"),
        (Opcode::Batch, vec![0, 0, 0, 0, 1, 0, 0, 0, 0x02], "Unknown batch flags 0x02"),
    ];
    let all = cases.iter().map(|case| (Version::V4, case)).chain(v5.iter().map(|case| (Version::V5, case)));
    for (version, (opcode, body, why)) in all {
        match decode_in(version, Dialect::default(), *opcode, body.clone()) {
            Err(Error::Protocol(message)) => assert!(message.contains(why), "{message} / {why}"),
            other => panic!("{why}: {other:?}"),
        }
    }
}
